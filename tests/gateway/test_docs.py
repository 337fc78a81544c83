"""Every command of docs/http.md works, in its order, as it stands there."""

import re
import shlex
from pathlib import Path

from clarion.testing import embedded
from tests.gateway.asking import Answer, Asker

PAGE = Path(__file__).resolve().parents[2] / "docs/http.md"
PLACE = "http://127.0.0.1:9644"


def commands() -> list[str]:
    return re.findall(r"^    (curl .*)$", PAGE.read_text(), re.MULTILINE)


def run(asker: Asker, command: str) -> Answer:
    """What curl does with these words."""
    words = shlex.split(re.sub(r"\$'([^']*)'", lambda found: "'" + found[1].replace("\\n", "\n") + "'", command))[1:]
    method, headers, body, path = "GET", {}, None, ""
    while words:
        match words.pop(0):
            case "-X":
                method = words.pop(0)
            case "-H":
                name, _, value = words.pop(0).partition(": ")
                headers[name] = value
            case "-d" | "--data-binary":
                body = words.pop(0).encode()
            case "-N":
                pass
            case place:
                assert place.startswith(PLACE), command
                path = place.removeprefix(PLACE)
    return asker.ask(method, path, body, headers)


def test_every_command_works():
    with embedded(metrics_port=0, clarion_http_share=1.0) as broker:
        asker = Asker(broker.http_url)
        found = commands()
        assert len(found) > 10
        answers = [(command, run(asker, command)) for command in found]
        assert [(command, answer) for command, answer in answers if answer.status not in (200, 201)] == []
        repeated = [answer.json for command, answer in answers if "Idempotency-Key" in command]
        assert repeated[0] == repeated[1]
