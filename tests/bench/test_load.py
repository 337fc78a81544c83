"""The load generator's loop and process, against small real servers."""

import os
import socket
import threading
import time

import pytest
from bench.load import LoadFailed, run_job
from bench.load.dialects import EqualReplies, Shots
from bench.load.pump import Writer, pump

REQUEST, REPLY = b"q" * 1000, b"r" * 10


def answer(listener: socket.socket, most: int) -> None:
    """Answers whole requests until the peer leaves, or hangs up after `most`."""
    connection, _ = listener.accept()
    pending = done = 0
    with connection:
        while done < most and (data := connection.recv(65536)):
            fresh, pending = divmod(pending + len(data), len(REQUEST))
            done += fresh
            connection.sendall(REPLY * fresh)


def writer_to(listener: socket.socket, frames_max: int) -> Writer:
    connection = socket.create_connection(listener.getsockname())
    shots = Shots([REQUEST], 1, len(REQUEST))
    deadline = time.perf_counter() + 20
    return Writer(connection, shots, EqualReplies(len(REPLY)), window=5, frames_max=frames_max, deadline=deadline)


def test_a_writer_ends_when_all_its_frames_are_acknowledged():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener, 1 << 30), daemon=True)
        thread.start()
        writer = writer_to(listener, frames_max=2000)
        writer.fill()
        assert writer.sent == 5
        pump([writer], time.perf_counter() + 20)
        assert writer.sent == writer.acked == 2000
        writer.connection.close()
        thread.join(60)


def test_a_server_that_hangs_up_under_load_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, args=(listener, 50), daemon=True).start()
        writer = writer_to(listener, frames_max=100_000)
        writer.fill()
        with pytest.raises(ConnectionError):
            pump([writer], time.perf_counter() + 20)


def test_a_job_runs_in_a_process_of_its_own_and_returns_figures(tmp_path):
    figures = run_job("raw-in", folder=str(tmp_path), total_bytes=5_000_000)
    assert figures["mb_per_s"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_fails_says_why():
    with pytest.raises(LoadFailed, match="refused"):
        run_job("idle", port=1, pid=1, connections=1)


def test_a_queue_is_read_and_acknowledged_through_the_python_client():
    from clarion.testing import embedded

    with embedded(topics=["orders"]) as broker:
        for number in range(300):
            broker.produce("orders", b"%d" % number)
        figures = run_job(
            "queue-client", peer="clarion", port=broker.port, pid=os.getpid(), topic="orders", messages=300,
            seconds=30, value_bytes=3,
        )  # fmt: skip
    assert figures["messages"] == 299  # the first one is read before the clock runs
    assert figures["messages_per_s"] > 0
