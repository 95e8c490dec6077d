from __future__ import annotations

import pytest

from redpoll.wire.link import Link
from redpoll.wire.link_lifecycle import redundant_links
from redpoll.wire.peer import Peer, select_link
from tests.wire.support import OURS, THEIRS, linked, plain_link


def test_staying_where_messages_go() -> None:
    """The present link is kept while it may carry messages; otherwise the newest usable one is selected, if any."""
    links = [linked(), linked(), linked()]
    seen = [select_link(links, links[0]), select_link(links, None)]
    links[0].leave()
    seen.append(select_link(links, links[0]))
    links[2].leave()
    seen.append(select_link(links, links[0]))
    links[1].leave()
    seen.append(select_link(links, links[0]))
    assert seen == [links[0], links[2], links[2], links[1], None]


def link(*, dialled: bool) -> Link[Peer]:
    made = linked()
    made.dialled = dialled
    return made


@pytest.mark.parametrize("smaller", [True, False])
def test_the_smaller_identitys_stays(smaller: bool) -> None:
    """Of two links the one that the smaller identity dialled stays, of the same dialler's the newer."""
    names = (THEIRS, OURS) if smaller else (OURS, THEIRS)
    ours, theirs = link(dialled=True), link(dialled=False)
    assert redundant_links([ours, theirs], *names) == [theirs if smaller else ours]
    assert redundant_links([theirs, ours], *names) == [theirs if smaller else ours]
    older, newer = link(dialled=smaller), link(dialled=smaller)
    assert redundant_links([older, newer], *names) == [older]


def test_no_link_is_one_too_many() -> None:
    """Libchirp's links all stay, one that is being left counts no more, and nothing is known of a nameless node's."""
    assert redundant_links([plain_link(), plain_link(), linked()], OURS, THEIRS) == []
    leaving = linked()
    leaving.leave()
    assert redundant_links([leaving, linked()], OURS, THEIRS) == []
    assert redundant_links([linked(), linked()], OURS, None) == []
