"""Faults planted in a copy of the broker, to verify that cells detect them: `python -m tests.chaos.run --plant NAME`.

Each names the cells that must report findings. The copy is made as in `tests/faults`; the checkout is not modified.
"""

from __future__ import annotations

from penstock_faults.planting import Fault

PLANTS = (
    Fault(
        name="acknowledged-alone",
        says="acks=all is answered when the leader has a batch, whatever the replicas in sync have",
        file="replica/leader.py",
        old="reached = self.high_watermark if self.under_min_isr else self.isr.min_flushed_offset(reached)",
        new="pass",
        caught_by=("kill-leader", "cut-from-peers"),
    ),
    Fault(
        name="duplicates-written",
        says="a repeated batch of an idempotent producer is written again",
        file="replica/producer_state.py",
        old="                return SequenceCheck.DUPLICATE, batch\n",
        new="                return SequenceCheck.APPEND, None\n",
        caught_by=("cut-from-peers",),
    ),
    Fault(
        name="outdated-acls",
        says="a broker decides by its ACLs however long it has not reached etcd",
        file="control/acl_confirmation.py",
        old="        return self.clock.boot_ms() < self.deadline_ms\n",
        new="        return True\n",
        caught_by=("revoked-while-cut",),
    ),
    Fault(
        name="share-state-not-stored",
        says="acknowledgements of share groups are answered although the store does not have them",
        file="share/coordinator.py",
        old="            return error or await self._put(write.key, states, stored, version, write.data)\n",
        new="            return error\n",
        caught_by=("queue-kill-leader",),
    ),
    Fault(
        name="delay-forgotten",
        says="a new leader takes all records that it finds for due",
        file="replica/delayed_delivery.py",
        old="window.known_ms - window.delay_ms",
        new="window.known_ms",
        caught_by=("queue-kill-leader",),
    ),
    Fault(
        name="schedule-forgotten",
        says="a new leader forgets the scheduled records that wait",
        file="replica/scheduled_delivery.py",
        old="        self.index = index\n        self.on_log_start()\n",
        new="        self.index = ScheduleIndex()\n        self.on_log_start()\n",
        caught_by=("schedule-kill-leader",),
    ),
)
