"""Faults that need several brokers, in addition to those in `faults`."""

from __future__ import annotations

from penstock.state import keys
from penstock.state.records import PartitionRecord, decode
from penstock_simulation.faults import MINOR, Faults
from penstock_simulation.store import STORE_HOST

CLUSTER_WEIGHTS = {
    "kill": 4,
    "kill_controller": 2,
    "kill_several": 2,
    "kill_in_sync": 2,
    "kill_in_disk": 3,
    "kill_in_loop": 3,
    "power_loss": 3,
    "power_loss_everywhere": 2,
    "kill_then_power_loss": 1,
    "pause": 3,
    "pause_in_loop": 2,
    "reset": 2,
    "cut": 2,
    "cut_peers": 3,
    "isolate": 2,
    "disk_slow": 2,
    "disk_full": 1,
    "write_error": 1,
    "sync_error": 1,
    "sync_error_trusted": 1,
    "store_away": 2,
    "store_away_overtaken": 1,
    "store_leader_change": 3,
    "store_cut": 3,
    "store_slow": 2,
    "watch_lag": 3,
    "store_compacts": 2,
    "lease_ends": 2,
    "clock_leap": 1,
    "restart": 2,
    "rolling_restart": 1,
    "kill_client": 2,
    "pause_client": 1,
}
CLUSTER_MINOR = {*MINOR, "store_compacts", "rolling_restart"}


class ClusterFaults(Faults):
    """The faults of a world with several brokers."""

    minor = CLUSTER_MINOR

    def kill_controller(self) -> bool:
        for host in self.scenario.hosts:
            node = host.serving
            if node is not None and node.is_controller:
                return self.kill_of(host)
        return False

    def kill_several(self) -> bool:
        """Kill a majority of the brokers or all of them, at once or within a short time."""
        hosts = list(self.scenario.hosts)
        self.rng.shuffle(hosts)
        apart_s = self.rng.choice([0.0, 0.05, 1.0])
        for host in hosts[: self.rng.choice([2, 2, len(hosts)])]:
            self.world.after(self.rng.uniform(0, apart_s), self.kill_of, host)
        return True

    def kill_in_sync(self) -> bool:
        """Stop all in-sync replicas of a partition that has one out of sync; they restart after a while."""
        contents = self.scenario.core.contents
        records = [decode(PartitionRecord, e.key, e.value) for e in contents.range(keys.PARTITIONS)]
        shrunk = [record for record in records if len(record.isr) < len(record.replicas)]
        if not shrunk:
            return False
        down_s = self.rng.uniform(1.0, 6.0)
        in_sync = self.rng.choice(shrunk).isr
        for host in self.scenario.hosts:
            if host.broker_id in in_sync:
                host.down_until_s = self.world.now + down_s
                self.kill_of(host)
        return True

    def power_loss_everywhere(self) -> bool:
        """Cut the power of all machines, or of all but one, at nearly the same time."""
        hosts = list(self.scenario.hosts)
        self.rng.shuffle(hosts)
        for host in hosts[self.rng.choice([0, 0, 1]) :]:
            self.world.after(self.rng.choice([0.0, self.rng.uniform(0, 0.2)]), self.power_loss_of, host)
        return True

    def cut_peers(self) -> bool:
        """Cut the link between two brokers, in both directions or one."""
        one, other = self.rng.sample([host.name for host in self.scenario.hosts], 2)
        self.cut_off(one, [other])
        return True

    def isolate(self) -> bool:
        """Cut one broker off from all others; the store and clients may still reach it."""
        host = self.any_host()
        others = [other.name for other in self.scenario.hosts if other is not host]
        if self.rng.random() < 0.3:
            others += [STORE_HOST]
        if self.rng.random() < 0.2:
            others += self.scenario.client_hosts
        self.cut_off(host.name, others)
        return True

    def store_leader_change(self) -> bool:
        """Leave the store without a leader for a short time. Pending calls may have been executed without an answer."""
        core = self.scenario.core
        if core.away:
            return False
        core.go_away()
        self.later(0.02, 0.6, self.store_back)
        return True

    def store_slow(self) -> bool:
        core = self.scenario.core
        core.delay_s = self.rng.choice([0.1, 0.5, 1.5])
        self.later(0.5, 4.0, core.calm)
        return True

    def watch_lag(self) -> bool:
        """Delay watch events, for one broker or all."""
        core = self.scenario.core
        hosts = self.rng.choice([[self.any_host().name], [host.name for host in self.scenario.hosts]])
        lag_s = self.rng.choice([0.5, 2.0])
        for name in hosts:
            core.lags[name] = lag_s
            self.later(0.5, 4.0, core.lags.pop, name, None)
        return True

    def store_compacts(self) -> bool:
        """Compact the store: watchers that lag must list again."""
        core = self.scenario.core
        last = core.history.last
        core.compact(max(core.history.first_change, last - self.rng.choice([0, 3, 50])))
        return True

    def lease_ends(self) -> bool:
        """Expire a broker's lease although the broker has sent its renewals."""
        core = self.scenario.core
        if core.away or not core.leases:
            return False
        core.end_lease(self.rng.choice(list(core.leases)))
        return True

    def rolling_restart(self) -> bool:
        """Restart all brokers in turn with SIGTERM."""
        for number, host in enumerate(self.scenario.hosts):
            self.world.after(number * self.rng.uniform(0.5, 4.0), host.stop)
        return True
