"""Every error is a problem as RFC 9457 has it, and every one of Kafka's codes has its status."""

import pytest

from clarion.gateway.problems import STATUSES, HttpProblem, problem_of
from clarion.model.errors import ErrorCode, KafkaError
from tests.gateway.asking import check_problem


@pytest.mark.parametrize("code", [code for code in ErrorCode if code is not ErrorCode.NONE])
def test_every_code_of_kafkas_has_a_status_and_a_problem(code):
    problem = problem_of(KafkaError(code))
    assert 400 <= problem.status < 600
    told = problem.to_json()
    assert told["code"] == code.name
    assert told["type"] == f"urn:clarion:problem:{code.name.lower().replace('_', '-')}"
    assert told["title"]
    assert told["detail"]


def test_every_code_is_in_the_table_once():
    assert sorted(STATUSES) == sorted(ErrorCode)


def test_what_may_pass_says_when_to_come_back():
    assert HttpProblem(429, "busy").headers["Retry-After"] == "1"
    assert problem_of(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)).headers["Retry-After"] == "1"


def test_paths_and_methods_that_are_none_are_problems_too(api, topic):
    check_problem(api.get("/v1/nothing"), 404, "/docs")
    check_problem(api.get("/v1/topics/"), 404)
    answer = api.ask("PUT", "/v1/topics")
    check_problem(answer, 405, "/docs")
    assert set(answer.headers["allow"].split(", ")) == {"GET", "POST"}
    said = check_problem(api.get(f"/v1/topics/{topic}/messages?limit=0&wait_ms=x"), 422, "limit")
    assert {"wait_ms", "limit"} == {one["at"][-1] for one in said["errors"]}
    check_problem(api.post(f"/v1/topics/{topic}/messages", b"{", Content_Type="application/json"), 400, "no JSON")
    check_problem(api.post(f"/v1/topics/{topic}/messages", b'{"value": NaN}', Content_Type="application/json"), 400)
    check_problem(api.post(f"/v1/topics/{topic}/messages", b'{"value": 1e999}', Content_Type="application/json"), 400)
    deep = b"[" * 100_000
    check_problem(api.post(f"/v1/topics/{topic}/messages", deep, Content_Type="application/json"), 400, "deep")


def test_the_root_shows_the_way_to_the_documentation(api):
    answer = api.get("/")
    assert (answer.status, answer.headers["location"]) == (307, "/docs")
    page = api.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert b"https://" not in page.body
    assert b"http://" not in page.body
    assert "default-src 'none'" in page.headers["content-security-policy"]
    described = api.get("/openapi.json").json
    assert described["openapi"].startswith("3.1")
    assert "/v1/topics/{topic}/messages" in described["paths"]


def test_every_answer_of_the_description_is_typed_and_every_reference_is_there(api):
    described = api.get("/openapi.json").json
    schemas = described["components"]["schemas"]
    refs = set()

    def walk(part):
        if isinstance(part, dict):
            refs.update(value for name, value in part.items() if name == "$ref")
            for value in part.values():
                walk(value)
        elif isinstance(part, list):
            for value in part:
                walk(value)

    walk(described)
    assert {ref.rpartition("/")[2] for ref in refs} <= set(schemas)
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            assert "default" in operation["responses"], (path, method)
            assert operation["summary"], (path, method)
            for status, answer in operation["responses"].items():
                for content in answer.get("content", {}).values():
                    assert content["schema"], (path, method, status)


def test_what_to_do_is_said_once_also_where_the_refusal_says_it_itself() -> None:
    in_use = problem_of(KafkaError(ErrorCode.NON_EMPTY_GROUP, "'billing' has members; stop its consumers first"))
    assert in_use.detail == "'billing' has members; stop its consumers first"
    assert problem_of(KafkaError(ErrorCode.NON_EMPTY_GROUP, "'b' has members")).detail.endswith(
        "; stop its consumers first"
    )
