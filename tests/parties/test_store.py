"""Models on a server's disk: they survive, they are private, what is damaged is refused by name, and no mask serves twice."""

from __future__ import annotations

import errno
import shutil
import stat
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from servers import MODEL, NETWORKS, QUERY, X, attended, query_works, settings_in, trio, weights
from small_programs import upload_job

from secformer.engine.form import masked, masked_bits
from secformer.engine.sharing import Encoded
from secformer.errors import AgreementError, MissingModelError, SecFormerError, StoreError
from secformer.parties import disk
from secformer.parties.messages import Job
from secformer.parties.planner import pieces_of
from secformer.parties.store import ModelStore, PieceNote, SeedsNote, joined_forms
from secformer.ring.fixed_point import reduce
from secformer.roles import COMPUTING, SERVERS

CPU = torch.device("cpu")
BITS = Encoded.ring_elements(torch.arange(-6, 6).reshape(4, 3), 0, 64, "bits")


@pytest.fixture
def settings(tmp_path):
    return settings_in(tmp_path / "identity")


@pytest.fixture
def memory():
    return NETWORKS["memory"]()


def store_of(settings, role, **options) -> ModelStore:
    return ModelStore(settings.data_folder / role, role, CPU, **options)


def folder_of(settings, role, name=MODEL):
    (found,) = (settings.data_folder / role / "models" / name).iterdir()
    return found


def stores(settings) -> dict[str, ModelStore]:
    return {role: store_of(settings, role) for role in SERVERS}


def revealed(found, name):
    """A stored tensor as all three servers together know it, and each of its masks."""
    zero, one, dealt = (found[role].get(MODEL).wires[name] for role in (*COMPUTING, "dealer"))
    assert torch.equal(zero.public, one.public) and dealt.public.is_meta
    boolean = not hasattr(zero, "scale")
    both = zero.mask ^ one.mask if boolean else zero.mask + one.mask
    assert torch.equal(reduce(both, zero.width), reduce(dealt.mask, zero.width))
    plain = zero.public ^ both if boolean else zero.public - both
    return reduce(plain, zero.width), zero.public


def test_what_was_opened_is_there_after_a_restart(settings, memory):
    tensors = {**weights(), "table": BITS}
    with trio(settings, networks=memory) as servers:
        servers.upload(tensors)
    found = stores(settings)
    for name, encoded in tensors.items():
        plain, public = revealed(found, name)
        assert torch.equal(plain, reduce(encoded.ring, encoded.form.width))
        assert not torch.equal(public, plain)
    with trio(settings, networks=memory) as servers:
        result = servers.client.run(QUERY, {"x": X})
        assert (result.outputs["y"] - attended(X)).abs().max() < 5e-3
        assert result.model == found["server0"].newest(MODEL).reference


def test_weights_are_packed_and_private_and_the_dealer_keeps_seeds_alone(settings, memory):
    with trio(settings, networks=memory) as servers:
        servers.upload(weights())
    packed = sum(encoded.form.packed_bytes for encoded in weights().values())
    for role in SERVERS:
        files = list(folder_of(settings, role).rglob("*"))
        assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in files)
        kept = sum(path.stat().st_size for path in files if path.suffix == ".wire")
        assert kept == (0 if role == "dealer" else packed)
        assert len(disk.read_note(folder_of(settings, role) / "seeds.json", SeedsNote).by_session) == 1
    assert "hidden" in repr(SeedsNote({}))


# Damage


def spoil(path, change):
    content = bytearray(path.read_bytes())
    path.write_bytes(bytes(change(content)))


def flipped(content):
    content[len(content) // 2] ^= 1
    return content


DAMAGE = {
    "a flipped bit of the weights": ("*.wire", flipped),
    "half the weights": ("*.wire", lambda content: content[: len(content) // 2]),
    "a flipped bit of the seeds": ("seeds.json", flipped),
    "a flipped bit of the notes": ("model.json", flipped),
    "empty notes": ("model.json", lambda content: b""),
    "other owners": ("access.json", flipped),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_model_is_refused_by_name_and_the_rest_serves(settings, memory, name):
    pattern, change = DAMAGE[name]
    with trio(settings, networks=memory) as servers:
        servers.upload(weights())
        servers.upload(weights(), "other")
    spoil(next(folder_of(settings, "server1").glob(pattern)), change)
    with trio(settings, networks=memory) as servers:
        with pytest.raises(StoreError, match=r"server1: model model@.*restore it from a back-up, or push it again"):
            servers.client.run(QUERY, {"x": X})
        other = Job(QUERY.program, QUERY.parameters, uses="other")
        assert (servers.client.run(other, {"x": X}).outputs["y"] - attended(X)).abs().max() < 5e-3
        servers.upload(weights())
        assert query_works(servers.client)


def test_seeds_of_another_model_do_not_pass_for_its_own(settings, memory):
    with trio(settings, networks=memory) as servers:
        servers.upload(weights())
        servers.upload(weights(), "other")
    shutil.copy(folder_of(settings, "server0", "other") / "seeds.json", folder_of(settings, "server0"))
    with pytest.raises(StoreError, match="contradict"):
        store_of(settings, "server0").get(MODEL).wires  # noqa: B018


# Disks that refuse


@pytest.mark.parametrize("role", SERVERS)
def test_a_full_disk_loses_nothing(settings, memory, monkeypatch, role):
    with trio(settings, networks=memory) as servers:
        servers.upload(weights())
        before = {one: servers.servers[one]._models.newest(MODEL).reference for one in SERVERS}
        write = disk.write_file

        def full(path, content):
            if f"/{role}/" in str(path) and path.suffix in (".wire", ".json") and "staging" in str(path):
                with disk.refusals_of(path):
                    raise OSError(errno.ENOSPC, "No space left on device")
            return write(path, content)

        monkeypatch.setattr(disk, "write_file", full)
        monkeypatch.setattr("secformer.parties.store.write_file", full)
        with pytest.raises(StoreError, match="disk of this server is full"):
            servers.upload(weights())
        monkeypatch.undo()
        assert {one: servers.servers[one]._models.newest(MODEL).reference for one in SERVERS} == before
        assert query_works(servers.client)
        servers.upload(weights())
        assert query_works(servers.client)


def test_a_model_that_would_not_fit_is_refused_before_anything_is_sent(settings, memory, monkeypatch):
    with trio(settings, networks=memory) as servers:
        monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, disk.MARGIN))
        with pytest.raises(StoreError, match="MiB free, this needs"):
            servers.upload(weights())
        assert not list(settings.data_folder.rglob("*.wire"))


# Moments of an upload


@pytest.mark.parametrize("victim", SERVERS)
@pytest.mark.parametrize("moment", ["stage", "seal", "commit"])
def test_a_server_that_dies_while_it_stores_leaves_a_model_that_serves(settings, memory, monkeypatch, victim, moment):
    """Whatever the moment, after its restart all three use one version, the old or the new, and nothing is mixed."""
    with trio(settings, networks=memory) as servers:
        servers.upload(weights())
        store = servers.servers[victim]._models

        def die(*_):
            raise StoreError("the power went")

        monkeypatch.setattr(store, moment, die)
        with suppress(SecFormerError):  # T's last step comes when everybody else is done
            servers.upload(weights())
    monkeypatch.undo()
    with trio(settings, networks=memory) as servers:
        assert query_works(servers.client)
        versions = {role: {kept.note.upload for kept in servers.servers[role]._models.all()} for role in SERVERS}
        used = servers.client.run(QUERY, {"x": X}).model.partition("@")[2]
        assert all(any(upload.startswith(used) for upload in found) for found in versions.values())
        servers.upload(weights())
        assert query_works(servers.client)


def test_a_sealed_upload_is_committed_when_another_server_knows_it(settings, memory, monkeypatch):
    with trio(settings, networks=memory) as servers:
        store = servers.servers["server1"]._models

        def die(*_):
            raise StoreError("the power went")

        monkeypatch.setattr(store, "commit", die)
        with pytest.raises(SecFormerError):
            servers.upload(weights())
    monkeypatch.undo()
    assert store_of(settings, "server0").newest(MODEL) is not None
    assert store_of(settings, "server1").newest(MODEL) is None
    with trio(settings, networks=memory) as servers:
        assert query_works(servers.client)


def test_an_upload_that_was_broken_off_makes_room_for_the_next(settings, memory, monkeypatch):
    with trio(settings, networks=memory) as servers:
        monkeypatch.setattr(
            servers.servers["dealer"]._models, "stage", lambda *_: (_ for _ in ()).throw(StoreError("no"))
        )
        for _ in range(3):
            with pytest.raises(StoreError):
                servers.upload(weights())
            assert len(list((settings.data_folder / "server0" / "staging").iterdir())) <= 1
        monkeypatch.undo()
        servers.upload(weights())
        assert not list((settings.data_folder / "server0" / "staging").iterdir())


# Back-ups


def all_masks(settings, seen):
    """Every mask any server ever had, by where it was found."""
    for role in SERVERS:
        for path in (settings.data_folder / role).rglob("seeds.json"):
            for session, seeds in disk.read_note(path, SeedsNote).by_session.items():
                for seed in seeds:
                    seen.setdefault((role, seed), set()).add((path.parent.name, session))


@pytest.mark.parametrize("restored", [*SERVERS, "all"])
def test_a_back_up_never_puts_a_mask_on_a_second_tensor(settings, memory, tmp_path, restored):
    """Store, back up, store more, restore, store again: one seed, one session, one upload, always."""
    seen: dict = {}
    with trio(settings, networks=memory) as servers:
        servers.upload(weights())
    shutil.copytree(settings.data_folder, tmp_path / "back-up")
    all_masks(settings, seen)
    with trio(settings, networks=memory) as servers:
        servers.upload(weights())
        all_masks(settings, seen)
    for role in SERVERS if restored == "all" else (restored,):
        shutil.rmtree(settings.data_folder / role)
        shutil.copytree(tmp_path / "back-up" / role, settings.data_folder / role)
    with trio(settings, networks=memory) as servers:
        for _ in range(2):
            servers.upload(weights())
            all_masks(settings, seen)
        assert query_works(servers.client)
    assert len(seen) == 4 * 4  # four uploads, a seed at S0 and S1 each and both at T
    assert all(len(places) == 1 for places in seen.values())


# Versions


def test_old_versions_go_when_a_newer_one_is_used(settings, memory):
    with trio(settings, networks=memory) as servers:
        for _ in range(4):
            servers.upload(weights())
        assert all(len(list(servers.servers[role]._models.all())) == 4 for role in SERVERS)
        servers.client.run(QUERY, {"x": X})
        assert all(len(list(servers.servers[role]._models.all())) == 2 for role in SERVERS)


def test_models_in_memory_are_bounded(settings, memory):
    settings = replace(settings, loaded_models=1)
    with trio(settings, networks=memory) as servers:
        for name in ("one", "two", "three"):
            servers.upload(weights(), name)
        for name in ("one", "two", "three", "one"):
            job = Job(QUERY.program, QUERY.parameters, uses=name)
            assert (servers.client.run(job, {"x": X}).outputs["y"] - attended(X)).abs().max() < 5e-3
        assert all(len(server._models._loaded) == 1 for server in servers.servers.values())


# Pieces


def _rows(forms, piece):
    return forms[piece.tensor]._replace(shape=(piece.stop - piece.start, *forms[piece.tensor].shape[1:]))


def test_a_model_is_cut_into_pieces_that_cover_it_once():
    forms = {"a": masked((100, 7), 54, 3), "b": masked_bits((5, 3)), "c": masked((1, 900), 64)}
    for limit in (50, 400, 1000, 1 << 20):
        sessions = pieces_of(forms, limit)
        notes = [
            PieceNote(piece.tensor, piece.start, _rows(forms, piece), "", 0) for part in sessions for piece in part
        ]
        assert joined_forms(notes) == forms
        sizes = [[_rows(forms, piece).packed_bytes for piece in pieces] for pieces in sessions]
        assert all(sum(size) <= limit + len(size) or len(size) == 1 for size in sizes)
    assert len(pieces_of(forms, 1 << 20)) == 1
    with pytest.raises(StoreError, match="do not fit together"):
        joined_forms([PieceNote("a", 1, forms["a"], "", 0)])


def test_servers_with_other_pieces_do_not_make_a_version(settings, memory, monkeypatch):
    with trio(settings, networks=memory) as servers:
        monkeypatch.setattr(servers.servers["server1"]._models, "manifest", lambda upload: "another")
        with pytest.raises(AgreementError, match="pieces of the upload"):
            servers.upload(weights())
        with pytest.raises(MissingModelError):
            servers.client.run(QUERY, {"x": X})


def test_a_store_is_of_one_role(settings, memory):
    """The parts are where they belong: no server's folder has what would unmask the weights."""
    with trio(settings, networks=memory) as servers:
        servers.provider.run(upload_job(weights(), MODEL), weights())
    own = {role: disk.read_note(folder_of(settings, role) / "seeds.json", SeedsNote) for role in SERVERS}
    zero, one, both = (
        {seed for seeds in own[role].by_session.values() for seed in seeds} for role in (*COMPUTING, "dealer")
    )
    assert both == zero | one and not zero & one


def test_a_store_knows_the_wires_that_it_has_in_memory(settings, memory):
    """What was recorded with a model is kept as long as that is loaded, and no longer."""
    with trio(settings, networks=memory) as servers:
        servers.upload(weights())
    store = store_of(settings, "server0")
    wires = store_of(settings, "server0").get(MODEL).wires
    assert not store.holds(wires)  # another's
    wires = store.get(MODEL).wires
    assert store.holds(wires) and store.holds({"keys": wires["keys"]})
    store.remove(MODEL)
    assert not store.holds(wires)
