"""One handle on all tools: `tool("TopicCommand", "--list")`."""

from collections.abc import Callable

import pytest
from bench.peers.kafka import jars, run_tool
from bench.peers.process import PeerUnavailable

Tool = Callable[..., str]
CLASSES = {
    "topics": "org.apache.kafka.tools.TopicCommand",
    "configs": "kafka.admin.ConfigCommand",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "dump-log": "org.apache.kafka.tools.DumpLogSegments",
}


@pytest.fixture(scope="session")
def jars_or_skip() -> None:
    try:
        jars()
    except PeerUnavailable as reason:
        pytest.skip(f"Kafka's tools cannot be had here: {reason}")


@pytest.fixture
def offline_tool(jars_or_skip: None) -> Tool:
    """A tool that looks at files."""
    return _run


@pytest.fixture
def tool(jars_or_skip: None, bootstrap: str) -> Tool:
    """A tool that talks to the shared broker; it must end well, and what it printed is the answer."""
    return tool_for(bootstrap)


def tool_for(bootstrap: str) -> Tool:
    return lambda name, *args, stdin=None: _run(name, "--bootstrap-server", bootstrap, *args, stdin=stdin)


def _run(name: str, *args: str, stdin: str | None = None) -> str:
    done = run_tool(CLASSES[name], args, stdin=stdin, timeout_s=200)
    said = f"kafka-{name} {' '.join(args)}\nstatus {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert done.returncode == 0, said
    assert "Exception" not in done.stderr, said
    assert " ERROR " not in done.stdout, said
    return done.stdout
