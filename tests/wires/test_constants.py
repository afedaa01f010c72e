"""Public constants: of the menu or refused, and few bits in all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from secformer.errors import CalibrationError
from secformer.models.shapes import PRESETS
from secformer.wires import choices
from secformer.wires.constants import Constants, NormRange, QuadRange
from secformer.wires.presets import preset_constants
from secformer.wires.suites import EXACT, FAST

BASE = PRESETS["bert-base"]
GTE_SMALL = replace(BASE, hidden=384, intermediate=1536, head="embedding", labels=(), pooler="")
RELU = replace(BASE, activation="relu", pooler="relu")
QUAD = FAST.adapt(BASE)


WIDEST = max(choices.OUTPUT_RATIOS[-1])


def first(constants: Constants, **changes: object) -> Constants:
    """With another first layer."""
    return replace(constants, layers=(replace(constants.layers[0], **changes), *constants.layers[1:]))


EDITS = {
    "a window of no menu": lambda c: first(c, windows=((5, 12),)),
    "windows of other shares": lambda c: first(c, windows=((6, 5), (7, 7))),
    "windows out of order": lambda c: first(c, windows=((7, 8), (6, 4))),
    "a window for nobody": lambda c: first(c, windows=((6, 12), (7, 0))),
    "a window twice": lambda c: first(c, windows=((6, 6), (6, 6))),
    "half a head": lambda c: first(c, windows=((6, 11.5), (7, 0.5))),
    "too few heads": lambda c: first(c, windows=((6, 11),)),
    "too many neurons": lambda c: first(c, classes=(("tight", 3000), ("narrow", 200))),
    "neurons of other shares": lambda c: first(c, classes=(("tight", 3071), ("narrow", 1))),
    "an unknown class": lambda c: first(c, classes=(("mild", 3072),)),
    "no class": lambda c: first(c, classes=()),
    "a row sum beside windows": lambda c: first(c, quad=QuadRange(11, 230)),
    "an even number of bits": lambda c: first(c, attention_norm=NormRange(6, 32)),
    "the widest ratio behind attention": lambda c: first(c, attention_norm=NormRange(7, WIDEST)),
    "two widest ratios": lambda c: first(c, output_norm=NormRange(7, WIDEST)),
    "a ratio between": lambda c: first(c, output_norm=NormRange(7, 100)),
    "bits of a table": lambda c: replace(c, embedding_norm=NormRange(9, 32)),
    "a tanh of another width": lambda c: replace(c, pooler=65),
    "a ReLU nobody has": lambda c: replace(c, relu_bits=8),
    "a layer more": lambda c: replace(c, layers=(*c.layers, c.layers[0])),
    "no layers": lambda c: replace(c, layers=()),
    "another softmax": lambda c: replace(c, softmax="2quad"),
    "another shift": lambda c: replace(c, quad_shift=5.0),
}


@pytest.mark.parametrize("name", EDITS)
def test_what_is_not_on_the_menu_is_refused(name):
    constants = preset_constants(BASE)
    constants.check(BASE)
    with pytest.raises(CalibrationError, match="this calibration was made for"):
        EDITS[name](constants).check(BASE)


@pytest.mark.parametrize("quad", [QuadRange(7, 230), QuadRange(11, 231), QuadRange(24, 230), None])
def test_row_sums_of_no_menu_are_refused(quad):
    constants = preset_constants(QUAD)
    constants.check(QUAD)
    with pytest.raises(CalibrationError):
        first(constants, quad=quad).check(QUAD)


@pytest.mark.parametrize("change", [{"relu_bits": 7}, {"relu_bits": 0}, {"pooler": 64}, {"pooler": 0}])
def test_a_rectifier_of_no_menu_is_refused(change):
    constants = preset_constants(RELU)
    constants.check(RELU)
    with pytest.raises(CalibrationError):
        replace(constants, **change).check(RELU)


def test_a_card_tells_few_bits():
    """Of 33 million weights."""
    assert 100 < EXACT.preset(GTE_SMALL).entropy() <= 250
    assert FAST.preset(GTE_SMALL).entropy() <= 250
    assert preset_constants(RELU).entropy(RELU) < preset_constants(BASE).entropy(BASE)


def test_every_layer_tells_as_much():
    one, two, three = (replace(GTE_SMALL, layers=layers) for layers in (1, 2, 3))
    bits = [preset_constants(config).entropy(config) for config in (one, two, three)]
    assert bits[2] - bits[1] == pytest.approx(bits[1] - bits[0])
    outside = 2 * bits[0] - bits[1]
    menus = (choices.TABLE_BITS, choices.VARIANCE_RATIOS, choices.OUTPUT_RATIOS)
    assert outside == pytest.approx(sum(map(choices.bits_of, menus)))


def test_the_widest_ratio_is_for_all_layers_or_none():
    """Those of BERT-base's preset have 2,048: beside them no other is wider."""
    constants = preset_constants(BASE)
    layers = []
    for layer in constants.layers:
        norm = layer.output_norm
        wide = norm.ratio == choices.VARIANCE_RATIOS[-1]
        layers.append(replace(layer, output_norm=NormRange(norm.bits, WIDEST if wide else norm.ratio)))
    replace(constants, layers=tuple(layers)).check(BASE)
    with pytest.raises(CalibrationError):
        first(replace(constants, layers=tuple(layers)), output_norm=constants.layers[0].output_norm).check(BASE)
