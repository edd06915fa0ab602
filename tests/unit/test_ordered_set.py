"""A set with an order."""

from millstream.formats.model.ordered_set import OrderedSet


def test_members_keep_the_order_in_which_they_came() -> None:
    things = [object() for _ in range(100)]
    ordered: OrderedSet[object] = OrderedSet()
    for each in things:
        ordered.add(each)
    ordered.add(things[0])
    assert list(ordered) == things and len(ordered) == 100
    ordered.discard(things[3])
    ordered.discard(things[3])
    assert things[3] not in ordered and list(ordered) == things[:3] + things[4:]
