"""The levels of a broker's loggers, read and changed by clients. The answers are those of Apache Kafka 4.3."""

import logging

import pytest

from tests.broker.harness import running
from tests.broker.test_dynamic_settings import APPEND, BROKER_LOGGER, DELETE, ONE, QUICK, SET, alter, told


@pytest.fixture
def quiet_again():
    """Levels belong to the process, and so to all tests."""
    root, ours = logging.getLogger(), logging.getLogger("clarion.broker")
    before = root.level, ours.level
    yield ours
    root.setLevel(before[0])
    ours.setLevel(before[1])


async def test_the_level_of_a_logger_changes_what_is_written(tmp_path, quiet_again, caplog):
    async with running(tmp_path, **QUICK) as node:
        listed = await told(node, BROKER_LOGGER, ONE)
        assert {"root", "clarion.broker", "clarion.net"} <= listed.keys()
        assert {(one.config_source, one.config_type, one.synonyms) for one in listed.values()} == {(6, 0, ())}
        assert await alter(node, BROKER_LOGGER, ONE, ("clarion.broker", SET, "ERROR")) == (0, None)
        assert (await told(node, BROKER_LOGGER, ONE))["clarion.broker"].value == "ERROR"
        await node.topic("unheard")
        assert await alter(node, BROKER_LOGGER, ONE, ("clarion.broker", SET, "INFO")) == (0, None)
        await node.topic("heard")
        created = [one.clarion_fields["topic"] for one in caplog.records if one.getMessage() == "topic_created"]
        assert created == ["heard"]
        await alter(node, BROKER_LOGGER, ONE, ("root", SET, "FATAL"), ("clarion.broker", DELETE, None))
        assert (await told(node, BROKER_LOGGER, ONE))["clarion.broker"].value == "FATAL", "inherited"


@pytest.mark.parametrize(
    ("name", "change", "code", "words"),
    [
        (ONE, ("clarion.broker", SET, "debug"), 40, "Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN"),
        (ONE, ("no.such.logger", SET, "DEBUG"), 40, "Logger no.such.logger does not exist!"),
        (ONE, ("no.such.logger", DELETE, None), 40, "Logger no.such.logger does not exist!"),
        (ONE, ("root", DELETE, None), 42, "Removing the log level of the root logger is not allowed"),
        (ONE, ("root", APPEND, "DEBUG"), 42, "APPEND operation is not allowed for the BROKER_LOGGER resource"),
        ("99", ("root", SET, "DEBUG"), 42, "Unexpected node id. Expected 1, but received 99"),
        ("", ("root", SET, "DEBUG"), 42, "Node id must be an integer, but it is: "),
    ],
)
async def test_a_level_that_cannot_be_is_refused(tmp_path, quiet_again, name, change, code, words):
    async with running(tmp_path, **QUICK) as node:
        before = await told(node, BROKER_LOGGER, ONE)
        refused, message = await alter(node, BROKER_LOGGER, name, ("clarion.broker", SET, "TRACE"), change)
        if change[0] == "clarion.broker":
            assert refused == 42, "named twice"
            refused, message = await alter(node, BROKER_LOGGER, name, change)
        assert refused == code
        assert words in message
        assert await told(node, BROKER_LOGGER, ONE) == before


async def test_validation_changes_no_level(tmp_path, quiet_again):
    async with running(tmp_path, **QUICK) as node:
        assert await alter(node, BROKER_LOGGER, ONE, ("clarion.broker", SET, "TRACE"), validate_only=True) == (0, None)
        assert quiet_again.level == logging.NOTSET
