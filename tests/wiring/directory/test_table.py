"""Names, leases, clashes, takeovers, static entries, grace and watches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from redpoll import Address
from redpoll.wiring.directory.entries import Entry, Key
from redpoll.wiring.directory.table import Bounds, Holder, Outcome, RegistrationResult, Table
from tests.wiring.directory.support import HERE, LEASE, OTHER, THERE, entry, give, join, table, told

E: Key = ("exchange", "E")


def test_a_name_is_found() -> None:
    """What was registered is found, by kind and name, and what was not is not."""
    names = table()
    assert give(names, join(names), entry()) is Outcome.REGISTERED
    assert names.look(0.0, E).entry == entry()
    assert names.look(0.0, ("queue", "E")).entry is None
    assert names.page(None, 99) == [entry()]
    assert len(names) == 1


def test_a_live_clash_is_refused() -> None:
    """A name that another owner has, whose link is there, stays its own."""
    names = table()
    give(names, join(names), entry())
    assert names.register(1.0, join(names, 2), entry(identity=OTHER)) == RegistrationResult(Outcome.TAKEN)
    assert names.look(1.0, E).entry == entry()


def test_another_address_of_the_same_client() -> None:
    """Who has a name may say that it is elsewhere now."""
    names = table()
    holder = join(names)
    give(names, holder, entry())
    assert give(names, holder, entry(address=THERE)) is Outcome.REGISTERED
    assert names.look(0.0, E).entry == entry(address=THERE)


def test_a_lost_link_makes_suspect() -> None:
    """An owner whose link is lost keeps its name, marked, until its lease is over."""
    names = table()
    holder = join(names)
    give(names, holder, entry())
    names.lose(10.0, holder)
    assert names.look(10.0, E).entry == entry(suspect=True)
    assert (names.deadline, names.holders) == (10.0 + LEASE, 1)
    names.expire(10.0 + LEASE - 0.1)
    assert names.look(0.0, E).entry is not None
    names.expire(10.0 + LEASE)
    assert (names.look(0.0, E).entry, names.deadline, names.holders) == (None, None, 0)


def test_a_suspect_name_is_kept_for_its_owner() -> None:
    """While the lease runs another owner does not get the name, and is told for how long."""
    names = table()
    holder = join(names)
    give(names, holder, entry())
    names.lose(10.0, holder)
    other = join(names, 2)
    assert names.register(12.0, other, entry(identity=OTHER, address=THERE)) == RegistrationResult(
        Outcome.TAKEN, LEASE - 2.0
    )
    names.expire(10.0 + LEASE)
    assert give(names, other, entry(identity=OTHER, address=THERE)) is Outcome.REGISTERED


def test_the_same_client_over_a_new_link() -> None:
    """A client that comes again has its names back at once, also while its former link still looks well."""
    names = table()
    first = join(names)
    give(names, first, entry())
    again = join(names)
    assert give(names, again, entry()) is Outcome.REGISTERED
    assert not first.again
    names.lose(1.0, first)
    assert names.look(1.0, E).entry == entry()


def test_what_was_not_registered_again_is_gone() -> None:
    """What a client had and did not register over its new link is removed when it says that this was all."""
    names = table()
    first = join(names)
    give(names, first, entry("E"))
    give(names, first, entry("F"))
    names.lose(1.0, first)
    again = join(names)
    give(names, again, entry("E"), 2.0)
    assert names.look(2.0, ("exchange", "F")).entry == entry("F", suspect=True)
    names.settle(again)
    assert [each.name for each in names.page(None, 99)] == ["E"]
    assert names.holders == 1


def test_a_former_link_that_still_looks_well_can_be_settled() -> None:
    """What is left at a link that is not known to be lost goes too, and nothing of it stays when that is found out."""
    names = table()
    first = join(names)
    give(names, first, entry("F"))
    again = join(names)
    names.settle(again)
    assert len(names) == 0
    names.lose(1.0, first)
    names.leave(again)
    assert names.holders == 0


def test_a_later_run_takes_over() -> None:
    """The same owner started again has its names at once; its former run is told to look, and does not get them back."""
    names = table()
    old, new = join(names, 1, run=1), join(names, 2, run=2)
    give(names, old, entry())
    assert give(names, new, entry(address=THERE, run=2)) is Outcome.REGISTERED
    assert old.again
    assert old in names.restless
    assert give(names, old, entry()) is Outcome.TAKEN
    assert names.look(0.0, E).entry == entry(address=THERE, run=2)


def test_two_clients_of_one_run_do_not_fight() -> None:
    """Of two that are there with one identity and one run the first has the name."""
    names = table()
    give(names, join(names, 1), entry())
    assert give(names, join(names, 2), entry()) is Outcome.TAKEN


def test_an_earlier_run_takes_over_from_one_that_is_gone() -> None:
    """A clock that was set back does not keep an owner from its name when its former run is gone."""
    names = table()
    old = join(names, 1, run=5)
    give(names, old, entry(run=5))
    assert give(names, join(names, 2, run=4), entry(run=4)) is Outcome.TAKEN
    names.lose(0.0, old)
    assert give(names, join(names, 3, run=4), entry(run=4)) is Outcome.REGISTERED


def test_who_listens_where_a_lost_owner_did_takes_over() -> None:
    """Another identity at the very address of a suspect name has it at once: two cannot listen there."""
    names = table()
    old = join(names, 1)
    give(names, old, entry())
    new = join(names, 2)
    assert give(names, new, entry(identity=OTHER)) is Outcome.TAKEN
    names.lose(0.0, old)
    assert give(names, new, entry(identity=OTHER)) is Outcome.REGISTERED


def test_a_lease_is_renewed() -> None:
    """An owner that renews keeps its names; one that is linked and silent for a lease loses them, and is told to register."""
    names = table()
    holder = join(names)
    give(names, holder, entry())
    assert names.renew(10.0, holder, 1)
    names.expire(LEASE)
    assert len(names) == 1
    names.expire(10.0 + LEASE)
    assert len(names) == 0
    assert not names.renew(30.0, holder, 1)
    assert give(names, holder, entry(), 30.0) is Outcome.REGISTERED
    names.expire(30.0)
    assert len(names) == 1


def test_who_leaves_takes_all_along() -> None:
    """A client that says goodbye leaves nothing behind, and those who watch are told."""
    names = table()
    holder, other = join(names, 1), join(names, 2)
    give(names, holder, entry())
    names.watch(other, E)
    names.leave(holder)
    assert told(names, other) == [None]
    assert names.holders == 1


def test_a_name_is_given_up() -> None:
    """Who has a name can give it up; who has not cannot."""
    names = table()
    holder = join(names)
    give(names, holder, entry())
    assert not names.unregister(join(names, 2), E)
    assert names.unregister(holder, E)
    assert names.look(0.0, E).entry is None
    assert not names.unregister(holder, E)


def test_static_entries_stay() -> None:
    """A static entry never expires; a registration goes before it, and gives it back."""
    static = entry(address=THERE, identity=None, run=0)
    names = table(static)
    assert names.look(0.0, E).entry == replace(static, static=True)
    holder = join(names)
    names.watch(holder, E)
    assert give(names, holder, entry()) is Outcome.REGISTERED
    assert names.look(0.0, E).entry == entry()
    assert names.page(None, 99) == [entry()]
    assert len(names) == 1
    names.unregister(holder, E)
    names.expire(1e9)
    assert names.page(None, 99) == [replace(static, static=True)]
    assert told(names, holder) == [replace(static, static=True)]


def test_grace() -> None:
    """In its first lease a table does not know that nobody has a name; those who watch are told when it does."""
    names = table(entry("S", identity=None, run=0), grace=LEASE)
    holder = join(names)
    names.watch(holder, E)
    names.watch(holder, ("exchange", "S"))
    assert names.look(LEASE - 0.1, E)[1:] == (None, False)
    assert names.look(0.0, ("exchange", "S")).known
    assert (names.settles_at, names.deadline) == (LEASE, LEASE)
    names.expire(LEASE)
    assert (names.settles_at, names.deadline) == (None, None)
    assert [key for key, _ in names.take_news(LEASE, holder, 10)] == [E]
    assert names.look(LEASE, E)[1:] == (None, True)


def test_a_name_that_is_given_up_in_the_first_lease() -> None:
    """That nobody has it is known then; of how many this is remembered is bounded as names are."""
    names = table(grace=LEASE, bounds=Bounds(all_entries=1))
    holder = join(names)
    for name in "EF":
        give(names, holder, entry(name))
        names.unregister(holder, ("exchange", name))
    assert names.look(0.0, E)[1:] == (None, True)
    assert names.look(0.0, ("exchange", "F"))[1:] == (None, False)


def test_watchers_are_told_of_changes_alone() -> None:
    """Who watches is told when a name comes, moves, is suspect and goes, and not when it is registered as it was."""
    names = table()
    watcher, holder = join(names, 1), join(names, 2)
    names.watch(watcher, E)
    give(names, holder, entry())
    assert told(names, watcher) == [entry()]
    give(names, holder, entry())
    assert told(names, watcher) == []
    give(names, holder, entry(address=THERE))
    names.lose(0.0, holder)
    assert told(names, watcher) == [entry(address=THERE, suspect=True)]
    names.expire(LEASE)
    assert told(names, watcher) == [None]
    names.unwatch(watcher, E)
    names.unwatch(watcher, E)
    give(names, join(names, 3), entry())
    assert told(names, watcher) == []


def test_news_are_bounded() -> None:
    """What was not told of a name is told once, as it is then; what was not taken stays in its order."""
    names = table()
    watcher, holder = join(names, 1), join(names, 2)
    for name in "ABC":
        names.watch(watcher, ("exchange", name))
    for address in (HERE, THERE) * 10:
        for name in "CAB":
            give(names, holder, entry(name, address))
    first = names.take_news(0.0, watcher, 2)
    assert [key[1] for key, _ in first] == ["C", "A"]
    names.unwatch(watcher, ("exchange", "C"))
    names.give_back(watcher, [key for key, _ in first])
    assert [key[1] for key, _ in names.take_news(0.0, watcher, 9)] == ["B", "A"]
    assert not names.take_news(0.0, watcher, 9)


def test_looks_are_numbered() -> None:
    """Of two looks the later one has the greater number."""
    names = table()
    assert names.look(0.0, E).revision < names.look(0.0, E).revision


def test_entries_are_bounded() -> None:
    """A client has no more names than its bound, nor all clients than theirs; what one has it may move."""
    names = table(bounds=Bounds(entries=2, all_entries=3))
    one, two = join(names, 1), join(names, 2)
    assert [give(names, one, entry(name)) for name in "ABC"] == [Outcome.REGISTERED, Outcome.REGISTERED, Outcome.FULL]
    assert names.register(0.0, one, entry("C")).limit == 2
    assert give(names, one, entry("B", THERE)) is Outcome.REGISTERED
    assert give(names, two, entry("D")) is Outcome.REGISTERED
    assert names.register(0.0, two, entry("E")) == RegistrationResult(Outcome.FULL, limit=3)


def test_watches_are_bounded() -> None:
    """A client has no more watches than its bound, nor all clients than theirs; they come free again."""
    names = table(bounds=Bounds(watches=2, all_watches=3))
    one, two = join(names, 1), join(names, 2)
    assert [names.watch(one, ("queue", name)) for name in "AABC"] == [True, True, True, False]
    assert [names.watch(two, ("queue", name)) for name in "AB"] == [True, False]
    names.lose(0.0, one)
    assert names.watch(two, ("queue", "B"))


@dataclass
class Link:
    """One link of a client, as the model sees it."""

    holder: Holder
    client: int
    run: int
    heard: float
    linked: bool = True
    told: dict[Key, Entry | None] = field(default_factory=dict)


@dataclass
class Owned:
    """Who has a name, as the model sees it."""

    link: Link
    entry: Entry


NAMES = st.sampled_from("ABC")
PLACES = st.sampled_from([Address("tcp", "10.0.0.1", port) for port in (1, 2)])
NUMBERS = st.integers(0, 7)
STATIC = entry("A", Address("tcp", "10.0.0.9", 9), identity=None, run=0)


class Model(RuleBasedStateMachine):
    """Clients come, go, are started again and clash, over a table and over a plain account of what is promised."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.table = Table(0.0, lease=LEASE, grace=LEASE, static=[STATIC])
        self.links: list[Link] = []
        self.owned: dict[str, Owned] = {}
        self.had: set[str] = set()

    def linked(self) -> list[Link]:
        return [link for link in self.links if link.linked]

    def pick(self, number: int) -> Link:
        there = self.linked()
        return there[number % len(there)]

    @rule(client=st.integers(1, 3), run=st.integers(1, 2))
    def join(self, client: int, run: int) -> None:
        holder = Holder(bytes([client, run]) * 8, run)
        self.table.join(self.now, holder)
        self.links.append(Link(holder, client, run, self.now))

    @precondition(lambda self: self.linked())
    @rule(number=NUMBERS, name=NAMES, place=PLACES)
    def register(self, number: int, name: str, place: Address) -> None:
        link = self.pick(number)
        wanted = entry(name, place, identity=bytes([link.client]) * 16, run=link.run)
        link.heard = self.now
        for each in self.owned.values():
            if each.link is link:
                each.link.heard = self.now
        result = self.table.register(self.now, link.holder, wanted)
        owned = self.owned.get(name)
        free = owned is None or owned.link is link
        if owned is not None and not free:
            theirs = owned.link
            same_client = (theirs.client, theirs.run) == (link.client, link.run)
            same_owner = theirs.client == link.client
            free = (
                same_client
                or (same_owner and (link.run > theirs.run or not theirs.linked))
                or (owned.entry.address == place and not theirs.linked)
            )
        assert (result.outcome is Outcome.REGISTERED) is free
        if free:
            self.owned[name] = Owned(link, wanted)
            self.had.add(name)
        else:
            assert owned is not None
            left = None if owned.link.linked else owned.link.heard + LEASE - self.now
            assert result.free_in == left

    @precondition(lambda self: self.linked())
    @rule(number=NUMBERS, name=NAMES)
    def unregister(self, number: int, name: str) -> None:
        link = self.pick(number)
        owned = self.owned.get(name)
        mine = owned is not None and owned.link is link
        assert self.table.unregister(link.holder, ("exchange", name)) is mine
        if mine:
            del self.owned[name]

    @precondition(lambda self: self.linked())
    @rule(number=NUMBERS)
    def lose(self, number: int) -> None:
        link = self.pick(number)
        self.table.lose(self.now, link.holder)
        link.linked = False
        link.heard = self.now
        for owned in self.owned.values():
            if owned.link is link:
                owned.entry = replace(owned.entry, suspect=True)

    @precondition(lambda self: self.linked())
    @rule(number=NUMBERS)
    def leave(self, number: int) -> None:
        link = self.pick(number)
        self.table.leave(link.holder)
        link.linked = False
        self.owned = {name: owned for name, owned in self.owned.items() if owned.link is not link}

    @precondition(lambda self: self.linked())
    @rule(number=NUMBERS)
    def settle(self, number: int) -> None:
        link = self.pick(number)
        self.table.settle(link.holder)
        self.owned = {
            name: owned
            for name, owned in self.owned.items()
            if owned.link is link or (owned.link.client, owned.link.run) != (link.client, link.run)
        }

    @precondition(lambda self: self.linked())
    @rule(number=NUMBERS)
    def renew(self, number: int) -> None:
        link = self.pick(number)
        count = sum(owned.link is link for owned in self.owned.values())
        assert self.table.renew(self.now, link.holder, count)
        assert not self.table.renew(self.now, link.holder, count + 1)
        link.heard = self.now

    @precondition(lambda self: self.linked())
    @rule(number=NUMBERS, name=NAMES)
    def watch(self, number: int, name: str) -> None:
        link = self.pick(number)
        key: Key = ("exchange", name)
        assert self.table.watch(link.holder, key)
        link.told[key] = self.table.look(self.now, key).entry

    @rule(seconds=st.sampled_from((1.0, 5.0, LEASE)))
    def wait(self, seconds: float) -> None:
        """Time goes by, and the table is woken when it wants to be."""
        end = self.now + seconds
        while (deadline := self.table.deadline) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.table.expire(self.now)
        self.now = end
        self.owned = {name: owned for name, owned in self.owned.items() if owned.link.heard + LEASE > end}

    @invariant()
    def names_are_those_of_their_owners(self) -> None:
        for name in "ABC":
            owned = self.owned.get(name)
            seen = self.table.look(self.now, ("exchange", name))
            static = replace(STATIC, static=True) if name == "A" else None
            assert seen.entry == (static if owned is None else owned.entry)
            assert seen.known is (seen.entry is not None or self.now >= LEASE or name in self.had)
        assert len(self.table.page(None, 99)) == len(self.table) == len({*self.owned, "A"})

    @invariant()
    def watchers_know_what_is_so(self) -> None:
        for link in self.linked():
            for key, seen in self.table.take_news(self.now, link.holder, 100):
                assert key in link.told
                link.told[key] = seen.entry
            assert link.told == {key: self.table.look(self.now, key).entry for key in link.told}

    @invariant()
    def nothing_is_kept_of_those_that_are_gone(self) -> None:
        with_names = {id(owned.link) for owned in self.owned.values() if not owned.link.linked}
        assert self.table.holders == len(self.linked()) + len(with_names)


TestModel = Model.TestCase
TestModel.settings = settings(stateful_step_count=60, max_examples=100)
TestModel.__doc__ = "Whatever clients do, names belong to whom the promise says, and who watches knows."
