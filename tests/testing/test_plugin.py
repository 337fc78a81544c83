"""The pytest plugin in a project that knows nothing of Clarion but its name."""

import subprocess
import sys

import pytest

import clarion.testing.embedded_broker  # noqa: F401  # once: an inner run forgets what it has imported

pytest_plugins = ["pytester"]

QUIET = "addopts = --strict-markers -p no:hypothesispytest\nasyncio_default_fixture_loop_scope = function\n"


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini(f"[pytest]\n{QUIET}")
    return pytester


def run(project: pytest.Pytester, source: str, *arguments: str) -> pytest.RunResult:
    project.makepyfile(source)
    return project.runpytest_inprocess(*arguments)


def test_a_broker_of_its_own_for_each_test_and_one_for_all(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        ports = set()

        def test_one(clarion_broker, clarion_session_broker):
            clarion_broker.produce("t", "x")
            clarion_session_broker.produce("t", "x")
            ports.add(clarion_session_broker.port)

        def test_two(clarion_broker, clarion_session_broker):
            assert clarion_broker.topics() == {}
            assert len(clarion_session_broker.messages("t")) == 1
            assert ports == {clarion_session_broker.port}
        """,
    )
    result.assert_outcomes(passed=2)


def test_the_mark_configures_the_broker_and_the_nearest_one_wins(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        import pytest

        pytestmark = pytest.mark.clarion(topics=["everywhere"], settings={"retention.ms": 1000})

        def test_module(clarion_broker):
            assert clarion_broker.topics() == {"everywhere": 1}

        @pytest.mark.clarion(topics={"wide": 3}, durability="fsync", auto_create_topics=False)
        def test_own(clarion_broker):
            assert clarion_broker.topics() == {"wide": 3}
        """,
    )
    result.assert_outcomes(passed=2)


def test_the_factory_starts_as_many_as_wanted(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        import threading

        before = {*threading.enumerate()}  # this process has run other tests

        def test_two(clarion_broker_factory):
            source, target = clarion_broker_factory(topics=["in"]), clarion_broker_factory(topics=["out"])
            assert source.topics() != target.topics()

        def test_nothing_is_left():
            left = {*threading.enumerate()} - before
            assert not [one for one in left if one.name.startswith("clarion")]
        """,
    )
    result.assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("arguments", "ini"), [(["--clarion-durability=fsync"], ""), ([], "clarion_durability = fsync")]
)
def test_durability_can_be_chosen_for_a_whole_run(project: pytest.Pytester, arguments: list[str], ini: str) -> None:
    project.makeini(f"[pytest]\n{QUIET}{ini}\n")
    result = run(
        project,
        """
        def test_it(clarion_broker):
            clarion_broker.faults.disk_error("sync", times=None)
            try:
                clarion_broker.produce("t", "x")
            except Exception as error:
                assert "STORAGE" in str(error) or "disk" in str(error) or "Input/output" in str(error)
            else:
                raise AssertionError("acknowledged without a flush")
        """,
        *arguments,
    )
    result.assert_outcomes(passed=1)


def test_a_failed_test_shows_what_its_broker_said_and_a_passed_one_does_not(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        def test_passes(clarion_broker, clarion_session_broker):
            clarion_broker.create_topic("of-the-good-one")
            clarion_session_broker.create_topic("earlier")

        def test_fails(clarion_broker, clarion_session_broker):
            clarion_broker.create_topic("of-the-bad-one")
            clarion_session_broker.create_topic("shared")
            assert clarion_broker.topics() == {}
        """,
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*events of <EmbeddedBroker on 127.0.0.1:*", "*topic_created topic=of-the-bad-one*"])
    shown = result.stdout.str()
    assert "topic_created topic=shared" in shown
    assert "topic_created topic=of-the-good-one" not in shown
    assert "topic_created topic=earlier" not in shown


def test_a_failure_inside_the_broker_is_an_error_of_the_test(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        def test_it(clarion_broker):
            clarion_broker._living().soon(lambda: 1 / 0)
            clarion_broker.wait_for(lambda: clarion_broker.failures)
        """,
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["*BrokerFailedError: the broker failed 1 time*", "*ZeroDivisionError: division by zero*"]
    )


def test_a_mark_that_makes_no_sense_is_refused_with_a_sentence(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        import pytest

        @pytest.mark.clarion("orders")
        def test_positional(clarion_broker): ...

        @pytest.mark.clarion(topic="orders")
        def test_unknown(clarion_broker): ...
        """,
    )
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*takes keyword arguments only*", "*embedded() does not know 'topic'*"])


def test_it_works_in_processes_of_xdist_and_in_async_tests(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest
        from aiokafka import AIOKafkaProducer

        @pytest.mark.asyncio
        @pytest.mark.parametrize("number", range(2))
        async def test_it(clarion_broker, number):
            async with AIOKafkaProducer(bootstrap_servers=clarion_broker.bootstrap) as producer:
                await producer.send_and_wait("t", b"x")
            assert len(clarion_broker.messages("t")) == 1
        """
    )
    project.runpytest_subprocess("-n2", timeout=60).assert_outcomes(passed=2)


def test_the_fixtures_and_the_mark_explain_themselves(project: pytest.Pytester) -> None:
    project.makepyfile("def test_it(): ...")
    fixtures = project.runpytest_inprocess("--fixtures").stdout.str()
    assert all(name in fixtures for name in ("clarion_broker", "clarion_session_broker", "clarion_broker_factory"))
    assert "@pytest.mark.clarion(topics=" in project.runpytest_inprocess("--markers").stdout.str()


def test_loading_the_plugin_imports_nothing_of_the_broker() -> None:
    """Every pytest run of every user pays for it."""
    program = """
import sys, pytest
before = set(sys.modules)
import clarion.testing.plugin
print(*sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = [name for name in done.stdout.split() if name != "clarion.compiled"]
    assert loaded == ["clarion", "clarion.testing", "clarion.testing.plugin"]


def test_a_failure_shows_the_test_and_not_the_broker_s_inside(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        def test_value(clarion_broker):
            clarion_broker.produce("t", {"a": 1})

        def test_topic(clarion_broker):
            clarion_broker.messages("nowhere")

        def test_down(clarion_broker):
            clarion_broker.stop()
            clarion_broker.topics()

        def test_waiting(clarion_broker):
            clarion_broker.wait_for_messages("t", 1, timeout=0.01)
        """,
    )
    result.assert_outcomes(failed=4)
    shown = result.stdout.str()
    assert "there is no topic 'nowhere'" in shown
    for inside in ("embedded_broker.py", "life.py", "content.py", "futures", "resolver.py"):
        assert inside not in shown
