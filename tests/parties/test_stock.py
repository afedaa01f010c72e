"""Material dealt ahead of demand: used once whatever dies, refused where it is not whole or was seen before, and never in a
query's way."""

from __future__ import annotations

import os
import shutil
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from servers import MODEL, QUERY, Trio, X, attended, in_one_process, settings_in, trio, weights

from secformer.errors import LimitError, MaterialError, SettingsError, StoreError
from secformer.parties import stock as stock_module
from secformer.parties import storekeeper
from secformer.parties.messages import Job
from secformer.parties.restocking import Wish, parse_wishes, purpose_of, wished_job
from secformer.parties.stock import BURNED, ItemNote, Purpose, Stock, stream_name
from secformer.parties.storekeeper import Callers, Errand, Storekeeper
from secformer.roles import SERVERS
from secformer.transport.frame import SESSION_BYTES
from secformer.version import PROTOCOL_VERSION

PURPOSE = Purpose("a" * 32, "job")
TAPE = "tape"


def item_note(stock: Stock, **changes) -> ItemNote:
    fields = {"id": os.urandom(16).hex(), "upload": PURPOSE.upload, "job": PURPOSE.job, "tape": TAPE}
    return ItemNote(**{**fields, "protocol": PROTOCOL_VERSION, "epoch": stock.epoch + 1, "seed": "5e" * 32, **changes})


def filled(folder: Path, count: int = 1, limit: int = 1 << 20) -> Stock:
    """A stock that has been compared, with so many items."""
    stock = Stock(folder, limit)
    stock.compared = True
    for _ in range(count):
        put(stock)
    return stock


def put(stock: Stock, **changes) -> str:
    note = item_note(stock, **changes)
    stock.stage(note)
    stock.commit(note.id)
    return note.id


def again(stock: Stock) -> Stock:
    """As it is after a restart, once the three have compared."""
    stock.close()
    found = Stock(stock._folder, 1 << 20)
    found.compare("server0", [found.epoch], found.inventory())
    found.compared = True
    return found


# One server's


def test_an_item_is_given_out_once_and_the_ledger_remembers(tmp_path):
    stock = filled(tmp_path / "stock", 2)
    first, second = stock.take(PURPOSE), stock.take(PURPOSE)
    assert first and second and first != second and stock.take(PURPOSE) == ""
    assert stock.claim(first, PURPOSE, TAPE).id == first
    assert stock.claim(first, PURPOSE, TAPE) is None
    later = again(stock)
    assert later.is_burned(first) and later.is_burned(second) and later.take(PURPOSE) == ""
    assert later.claim(second, PURPOSE, TAPE) is None


def test_threads_never_take_one_item_twice(tmp_path):
    stock, got = filled(tmp_path / "stock", 40), []

    def take():
        while item := stock.take(PURPOSE):
            got.append(item)

    threads = [threading.Thread(target=take) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == len(set(got)) == 40
    lines = (tmp_path / "stock" / BURNED).read_text().splitlines()
    assert sorted(line.split()[0] for line in lines) == sorted(got)


class Died(BaseException):
    """Instead of `kill -9`."""


@pytest.mark.parametrize("point", ["before the ledger", "in the ledger", "behind the ledger"])
def test_whoever_dies_while_it_burns_has_burned_or_has_not_begun_to_use(tmp_path, monkeypatch, point):
    stock = filled(tmp_path / "stock")
    (item,) = stock.inventory()

    def die(*_):
        raise Died

    if point == "before the ledger":
        monkeypatch.setattr(stock._burned, "add", die)
    elif point == "in the ledger":
        file = stock._burned._file
        write = file.write
        monkeypatch.setattr(
            stock._burned, "_file", SimpleNamespace(tell=file.tell, write=lambda line: die(write(line[:20])))
        )
    else:
        monkeypatch.setattr(stock, "_note", die)
    with pytest.raises(Died):
        stock.take(PURPOSE)
    monkeypatch.undo()
    later = again(stock)
    expected = [] if point == "behind the ledger" else [item]
    assert later.inventory() == expected and later.is_burned(item) == (not expected)
    assert [later.take(PURPOSE), later.take(PURPOSE)] == [*expected, "", ""][:2]


def test_what_cannot_be_burned_is_not_used(tmp_path, monkeypatch):
    stock = filled(tmp_path / "stock", 2)

    def refuse(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(stock_module.os, "fsync", refuse)
        with pytest.raises(StoreError, match="full"):
            stock.take(PURPOSE)
    assert (tmp_path / "stock" / BURNED).read_bytes() == b""
    assert stock.take(PURPOSE) and len(again(stock).inventory()) == 1


@pytest.mark.parametrize(
    "changes", [{"upload": "b" * 32}, {"job": "other"}, {"tape": "other"}], ids=["version", "job", "tape"]
)
def test_an_item_for_something_else_is_not_used(tmp_path, changes):
    stock = filled(tmp_path / "stock", 0)
    item = put(stock, **changes)
    assert stock.claim(item, PURPOSE, TAPE) is None and stock.is_burned(item)


def test_items_of_another_protocol_version_or_damaged_ones_are_left_out(tmp_path):
    stock = filled(tmp_path / "stock")
    old = put(stock, protocol=PROTOCOL_VERSION - 1)
    damaged = put(stock)
    path = tmp_path / "stock" / f"{damaged}.json"
    path.write_bytes(path.read_bytes().replace(b"5e", b"5f", 1))
    later = again(stock)
    assert len(later.inventory()) == 1 and not {old, damaged} & set(later.inventory())
    assert not list((tmp_path / "stock").glob(f"{damaged}*"))


def test_files_are_private_and_a_damaged_ledger_is_refused(tmp_path):
    stock = filled(tmp_path / "stock")
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "stock").iterdir()} == {0o600}
    assert "5e5e" not in repr(stock.notes())
    stock.take(PURPOSE)
    stock.close()
    ledger = tmp_path / "stock" / BURNED
    ledger.write_bytes(b"x" + ledger.read_bytes()[1:])
    with pytest.raises(StoreError, match="ledger of the stock is damaged"):
        Stock(tmp_path / "stock", 1)


def test_the_ledger_forgets_what_no_file_can_bring_back(tmp_path, monkeypatch):
    monkeypatch.setattr(stock_module, "BURNED_KEPT", 4)
    stock = filled(tmp_path / "stock", 7)
    backup = {path.name: path.read_bytes() for path in (tmp_path / "stock").glob("*.json") if path.name != "epoch.json"}
    used = [stock.take(PURPOSE) for _ in range(6)]
    assert len(stock._burned) < 6
    stock.close()
    for name, content in backup.items():
        (tmp_path / "stock" / name).write_bytes(content)
    later = Stock(tmp_path / "stock", 1)
    assert len(later.inventory()) == 1 and not set(used) & set(later.inventory())


def test_what_was_never_compared_is_not_used(tmp_path):
    stock = filled(tmp_path / "stock")
    (item,) = stock.inventory()
    stock.compared = False
    assert stock.take(PURPOSE) == "" and stock.claim(item, PURPOSE, TAPE) is None and not stock.is_burned(item)


def test_a_server_that_died_between_staging_and_committing_catches_up(tmp_path):
    stock = filled(tmp_path / "stock")
    note = item_note(stock)
    stock.stage(note)
    stock.close()
    later = Stock(tmp_path / "stock", 1)
    later.compare("server1", [2, 2], [*later.inventory(), note.id])
    assert later.epoch == 2 and note.id in later.inventory()


def test_a_server_that_was_rolled_back_is_refused_and_a_fresh_one_is_not(tmp_path):
    stock = filled(tmp_path / "stock")
    stock.close()
    shutil.copytree(tmp_path / "stock", tmp_path / "backup")
    stock = filled(tmp_path / "stock")
    stock.close()
    restored, fresh = Stock(tmp_path / "backup", 1), Stock(tmp_path / "fresh", 1)
    with pytest.raises(MaterialError, match="server1: its stock is at epoch 1, the others' at 2"):
        restored.compare("server1", [2, 2], restored.inventory())
    fresh.compare("server1", [2, 2], [])
    assert (fresh.epoch, fresh.inventory()) == (2, [])


def test_of_what_not_all_three_have_nothing_is_used(tmp_path):
    stock = filled(tmp_path / "stock", 3)
    common = stock.inventory()[:1]
    stock.compare("dealer", [stock.epoch], common)
    assert stock.inventory() == common and len(again(stock)._burned) == 2


def test_streams_of_items_are_never_those_of_a_session():
    assert len(stream_name("ab" * 16)) != SESSION_BYTES


# Wishes


def test_wishes_are_read():
    assert parse_wishes("") == [] and parse_wishes(" a 1x32 4,b.c 8x16 2 ") == [
        Wish("a", 1, 32, 4),
        Wish("b.c", 8, 16, 2),
    ]
    for wrong in ("a 1x32", "a 1 32 4", "a 1x32 4 b 1x32 4", "../a 1x1 1"):
        with pytest.raises(SettingsError, match="setting stock"):
            parse_wishes(wrong)


def test_the_storekeeper_asks_for_what_is_missing_and_gives_up_what_is_stale(tmp_path):
    card = "a card"
    models = SimpleNamespace(find=lambda name: SimpleNamespace(note=SimpleNamespace(card=card, upload="a" * 32)))
    wish = Wish("m", 1, 16, 2)
    job = wished_job(wish, card)
    stock = filled(tmp_path / "stock", 1)  # for some other job
    keeper = Storekeeper([wish], stock, models, lambda errand: None, lambda: Callers(0, 0))  # type: ignore[arg-type]
    assert keeper.next_errand() == Errand(job, "a" * 32)
    assert stock.inventory() == [] and not stock.compared
    for _ in range(2):
        put(stock, job=purpose_of(job, "a" * 32).job)
    assert keeper.next_errand() == Errand()  # all is there, and the three should compare
    stock.compared = True
    assert keeper.next_errand() is None


def test_the_storekeeper_lets_callers_go_first_but_not_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(storekeeper, "POLITE", 0.2)
    here = [Callers(1, 0)]
    keeper = Storekeeper([], Stock(tmp_path / "stock", 1), None, lambda errand: None, lambda: here[0])  # type: ignore[arg-type]
    started = time.monotonic()
    assert keeper._may_begin() and time.monotonic() - started >= 0.2
    here[0] = Callers(2, 1)
    assert not keeper._may_begin()
    here[0] = Callers(0, 0)
    started = time.monotonic()
    assert keeper._may_begin() and time.monotonic() - started < 0.2


# Three servers


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    return tmp_path_factory.mktemp("deployment") / "identity"


class Stocked(Trio):
    """Servers with a model; `fill` has items dealt for QUERY."""

    def __init__(self, given: Trio) -> None:
        super().__init__(given.settings, given.servers, given._networks)

    def fill(self, count: int = 1) -> None:
        zero = self.servers["server0"]
        for _ in range(count):
            zero.restock(Errand(QUERY, zero._models.newest(MODEL).note.upload))

    def stocks(self) -> dict[str, Stock]:
        return {role: server.stock for role, server in self.servers.items()}

    def asked(self, x: torch.Tensor = X) -> int:
        """The right answer; gives the bytes that were dealt for it."""
        result = self.client.run(QUERY, {"x": x})
        assert (result.outputs["y"] - attended(x)).abs().max() < 5e-3
        self.errors()
        return result.dealer_bytes

    def ledgers(self) -> list[set[str]]:
        return [set(stock._burned._epochs) for stock in self.stocks().values()]


@pytest.fixture(autouse=True)
def no_storekeeper(monkeypatch):
    """Nobody fills the stock, or gives up what nobody wished for, but the test."""
    monkeypatch.setattr(Storekeeper, "start", lambda keeper: None)


@contextmanager
def stocked(settings, upload: bool = True):
    with trio(settings, networks=in_one_process()) as running:
        if upload:
            running.upload(weights())
        yield Stocked(running)


@pytest.fixture
def servers(identities):
    with stocked(settings_in(identities)) as running:
        yield running


def test_a_query_that_finds_stock_waits_for_no_dealing_and_what_is_used_is_burned_at_all_three(servers):
    servers.fill(2)
    assert {stock.epoch for stock in servers.stocks().values()} == {2}
    assert servers.servers["server1"].stock.size > 0 == servers.servers["server0"].stock.size
    assert [servers.asked() for _ in range(3)][:2] == [0, 0]
    zero, one, two = servers.ledgers()
    assert zero == one == two and len(zero) == 2
    assert servers.asked() > 0
    for stock in servers.stocks().values():
        assert {path.name for path in stock._folder.iterdir()} == {"epoch.json", BURNED}


def test_a_seed_of_the_stock_is_at_its_own_server_alone(servers):
    servers.fill()
    seeds = {role: stock.notes()[0].seed for role, stock in servers.stocks().items()}
    assert seeds["dealer"] == "" and seeds["server0"] != seeds["server1"]
    assert len(seeds["server0"]) == len(seeds["server1"]) == 64


def test_another_shape_is_dealt_for_in_its_session(servers):
    servers.fill()
    servers.client.run(Job("attention", {"rows": 2}, uses=MODEL), {"x": X[:2]})
    assert all(len(stock.inventory()) == 1 for stock in servers.stocks().values())


@pytest.mark.parametrize("lost", ["server1's corrections", "half of them", "server1's note", "the dealer's note"])
def test_a_lost_item_does_not_hold_up_a_query(servers, lost):
    servers.fill(2)
    item = servers.servers["server0"].stock.notes()[0].id
    folder = servers.servers["server1"].stock._folder
    if lost == "server1's corrections":
        (folder / f"{item}.material").unlink()
    elif lost == "half of them":
        os.truncate(folder / f"{item}.material", 7)
    else:
        servers.servers["dealer" if "dealer" in lost else "server1"].stock.discard([item])
    assert servers.asked() > 0
    assert servers.servers["server0"].stock.is_burned(item)
    servers.servers["server0"].restock(Errand())
    assert servers.asked() == 0


def test_damaged_corrections_give_no_result(servers):
    servers.fill()
    item = servers.servers["server0"].stock.notes()[0].id
    path = servers.servers["server1"].stock._folder / f"{item}.material"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"):
        servers.client.run(QUERY, {"x": X})
    assert servers.asked() > 0


def test_an_item_that_is_offered_again_is_refused(servers, caplog):
    """S0 as if it had been restored from a back-up: it offers what the others have burned."""
    servers.fill()
    zero = servers.servers["server0"].stock
    note = zero.notes()[0]
    assert servers.asked() == 0
    zero._items[note.id] = note
    del zero._burned._epochs[note.id]
    assert servers.asked() > 0
    assert "was burned: was it restored from a back-up?" in caplog.text


def test_two_lanes_use_two_items(servers):
    servers.fill(4)
    dealt = []
    threads = [
        threading.Thread(target=lambda factor=factor: dealt.append(servers.client.run(QUERY, {"x": X * factor})))
        for factor in (0.2, 0.4, 0.6, 0.8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [result.dealer_bytes for result in dealt] == [0] * 4
    servers.errors()
    zero, one, two = servers.ledgers()
    assert zero == one == two and len(zero) == 4


def test_the_space_of_server1_bounds_the_stock(identities):
    with stocked(settings_in(identities, stock_space=5000)) as running:
        running.fill()
        with pytest.raises(LimitError, match="stock_space"):
            running.fill()
        assert [len(stock.inventory()) for stock in running.stocks().values()] == [1, 1, 1]
        assert running.asked() == 0


def test_a_caller_cannot_send_the_servers_on_an_errand(servers):
    servers.fill()
    with pytest.raises(Exception, match="unknown program"):
        servers.client.run(Job("stock", {}, uses=MODEL), {})
    assert servers.asked() == 0


def test_two_servers_do_not_share_a_folder(servers):
    with pytest.raises(StoreError, match="another server uses"), trio(servers.settings, networks=in_one_process()):
        pass


# Restarts and back-ups

SHORT = {
    *(("server0", "a use"), ("server1", "a refill"), ("dealer", "a use")),
    *(("server0", "commit", "before"), ("server1", "receive", "behind"), ("dealer", "commit", "behind")),
}
"""One of each for `make test`; the rest is for `make test-long`."""


def test_stock_survives_a_restart_once_the_three_have_compared(identities):
    settings = settings_in(identities)
    with stocked(settings) as running:
        running.fill(2)
        before = running.servers["dealer"].stock.inventory()
    with stocked(settings, upload=False) as running:
        assert running.asked() > 0  # nobody has compared yet
        running.servers["server0"].restock(Errand())
        assert sorted(running.servers["dealer"].stock.inventory()) == sorted(before)
        assert running.asked() == 0


RESTORED = [
    pytest.param(victim, since, marks=() if (victim, since) in SHORT else pytest.mark.long)
    for victim in SERVERS
    for since in ("a refill", "a use")
]


@pytest.mark.parametrize(("victim", "since"), RESTORED)
def test_a_server_restored_from_a_back_up_uses_nothing_twice(identities, tmp_path, victim, since):
    settings = settings_in(identities)
    folder = settings.data_folder / victim / "stock"
    with stocked(settings) as running:
        running.fill(2)
        shutil.copytree(folder, tmp_path / "backup")
        assert running.asked() == 0
        if since == "a refill":
            running.fill()
        used = set.union(*running.ledgers())
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    with stocked(settings, upload=False) as running:
        zero = running.servers["server0"]
        if since == "a refill":
            with pytest.raises(MaterialError, match=f"{victim}.*restored from a back-up"):
                zero.restock(Errand())
            assert running.asked() > 0
        else:
            zero.restock(Errand())
            assert running.asked() == 0
            assert all(not used & set(stock.inventory()) for stock in running.stocks().values())
            (item,) = set(zero.stock._burned._epochs) - used
            assert item not in used
    if since == "a refill":
        shutil.rmtree(folder)  # as the error says
        with stocked(settings, upload=False) as running:
            running.fill()
            assert running.asked() == 0


POINTS = {
    "server0": [("stock.take", "S0 has burned"), ("stock.claim", "all may have burned")],
    "server1": [("stock.claim", "S1 has burned"), ("stock.material", "S1 has opened it")],
    "dealer": [("stock.claim", "T has burned")],
}


@pytest.mark.parametrize(("victim", "method"), [(role, name) for role, points in POINTS.items() for name, _ in points])
def test_a_server_that_dies_behind_its_burn_loses_an_item_and_no_more(identities, victim, method):
    settings = settings_in(identities)
    with stocked(settings) as running:
        running.fill(2)
        stock, name = running.servers[victim].stock, method.partition(".")[2]
        done = getattr(stock, name)

        def die(*arguments):
            done(*arguments)
            raise MaterialError("died")

        setattr(stock, name, die)
        with pytest.raises(Exception, match="died"):
            running.client.run(QUERY, {"x": X})
        running.errors()
        burned = set.union(*running.ledgers())
        assert len(burned) == 1
    with stocked(settings, upload=False) as running:
        running.servers["server0"].restock(Errand())
        assert running.asked() == 0 and not burned & set(running.servers["server1"].stock.inventory())
        fresh = [ledger - burned for ledger in running.ledgers()]
        assert all(len(ledger) == 1 for ledger in fresh) and len(set.union(*fresh)) == 1


COMING = [
    pytest.param(victim, moment, side, marks=() if (victim, moment, side) in SHORT else pytest.mark.long)
    for victim in SERVERS
    for moment in ("stage", "commit", *(["receive"] if victim == "server1" else []))
    for side in ("before", "behind")
]


@pytest.mark.parametrize(("victim", "moment", "side"), COMING)
def test_a_server_that_dies_while_stock_comes_in_leaves_all_three_able_to_go_on(identities, victim, moment, side):
    settings = settings_in(identities)
    with stocked(settings) as running:
        running.fill()
        stock = running.servers[victim].stock
        done = getattr(stock, moment)

        def die(*arguments):
            if side == "behind":
                done(*arguments)
            raise MaterialError("died")

        setattr(stock, moment, die)
        with pytest.raises(MaterialError, match="died"):
            running.fill()
        running.errors()
    with stocked(settings, upload=False) as running:
        running.fill()
        count = len(running.servers["server0"].stock.inventory())
        assert count >= 2
        assert [running.asked() for _ in range(count)] == [0] * count
        assert running.asked() > 0


def test_nothing_of_a_used_item_stays_on_a_disk(identities):
    settings = settings_in(identities)
    with stocked(settings) as running:
        running.fill()
        secrets = [running.servers[role].stock.notes()[0].seed.encode() for role in ("server0", "server1")]
        item = running.servers["server1"].stock.notes()[0].id
        material = (running.servers["server1"].stock._folder / f"{item}.material").read_bytes()
        assert running.asked() == 0
    for path in Path(settings.data_folder).rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(secret in content for secret in secrets) and material[:64] not in content
