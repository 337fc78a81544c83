"""One member's way from the partitions that it has to those that it shall have.

    STABLE ──new target──► UNREVOKED ──the member no longer reports the revoked ones──► STABLE or UNRELEASED
    STABLE ──new target, nothing to give up──► STABLE or UNRELEASED ──others release──► STABLE

Revoke before assign: a member's epoch moves to the target's only after it has let go, and a partition is given to
its new owner only when nobody holds it. That is why no partition ever has two owners.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from clarion.groups.consumer_group import MemberState
from clarion.groups.partitions import NOTHING, Partitions, collect, common, each, union, without
from clarion.groups.records import CurrentAssignment


def reconcile(
    current: CurrentAssignment,
    target: Partitions,
    target_epoch: int,
    is_free: Callable[[tuple[UUID, int]], bool],
    owned: Partitions | None,
) -> CurrentAssignment:
    """The member's next step. `owned` is what it says it has right now; None when it did not say."""
    if current.state == MemberState.STABLE and current.member_epoch == target_epoch:
        return current
    if current.state == MemberState.UNREVOKED and _holds(owned, current.pending_revocation):
        return current
    return _next_step(current, target, target_epoch, is_free, owned)


def _next_step(
    current: CurrentAssignment,
    target: Partitions,
    target_epoch: int,
    is_free: Callable[[tuple[UUID, int]], bool],
    owned: Partitions | None,
) -> CurrentAssignment:
    kept = common(current.assigned, target)
    to_revoke = without(current.assigned, target)
    if to_revoke and _holds(owned, to_revoke):
        return current._replace(state=MemberState.UNREVOKED, assigned=kept, pending_revocation=to_revoke)
    wanted = without(target, kept)
    free = collect((topic, (number,)) for topic, number in each(wanted) if is_free((topic, number)))
    return _at_epoch(current, target_epoch)._replace(
        state=MemberState.STABLE if free == wanted else MemberState.UNRELEASED,
        assigned=union(kept, free),
        pending_revocation=NOTHING,
    )


def _holds(owned: Partitions | None, partitions: Partitions) -> bool:
    """Whether the member may still be working on some of these; silence is no release."""
    return owned is None or bool(common(owned, partitions))


def _at_epoch(current: CurrentAssignment, epoch: int) -> CurrentAssignment:
    if epoch == current.member_epoch:
        return current
    return current._replace(member_epoch=epoch, previous_member_epoch=current.member_epoch)
