"""The running server by the official client: requests of every kind, clients that vanish, requests without sense."""

import asyncio
import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import openai
import pytest
import torch

from selattn import SelectiveForCausalLM
from tests.vllm.serving import near_tie

ZOO = Path(__file__).parents[2] / "zoo" / "memory-2048"
BUDGETS = 64
NAME = "memory"
PROMPT = "The city of London is the capital of"
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Server:
    """`selattn serve` in a process of its own."""

    def __init__(self, folder, *options):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "server.log"
        (folder / "template.jinja").write_text(TEMPLATE)
        environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "OMP_NUM_THREADS": "1"}
        given = ["--budgets", str(BUDGETS), "--dtype", "float32", "--enforce-eager", "--port", str(self.port)]
        given += ["--served-model-name", NAME, "--chat-template", str(folder / "template.jinja")]
        command = [sys.executable, "-m", "selattn", "serve", str(ZOO), *given, "--max-num-seqs", "32", *options]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)

    def wait(self, seconds=420):
        """Until it answers."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return self
            time.sleep(0.5)
        raise TimeoutError(self.log.read_text()[-3000:])

    def metric(self, name):
        """The sum of a metric over engines."""
        text = urllib.request.urlopen(f"{self.url}/metrics", timeout=10).read().decode()
        return sum(float(x) for x in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? ([\d.e+-]+)$", text, re.M))

    def idle(self, seconds=60):
        """Whether it comes to rest: nothing runs or waits, and all blocks are free."""
        end = time.monotonic() + seconds
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        while time.monotonic() < end:
            if all(self.metric(name) == 0 for name in names):
                return True
            time.sleep(0.5)
        return False

    def stop(self):
        """End it and its engines, which are a session of their own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    found = Server(tmp_path_factory.mktemp("server"))
    try:
        yield found.wait()
    finally:
        found.stop()


def complete(server, prompt=PROMPT, **options):
    usual = {"model": NAME, "max_tokens": 12, "temperature": 0}
    return server.client.completions.create(prompt=prompt, **{**usual, **options})


def test_it_says_what_a_request_costs(server):
    assert "a request costs" in server.log.read_text()


def test_completions_are_those_of_generate(server):
    model = SelectiveForCausalLM.from_pretrained(ZOO, dtype=torch.float32).eval()
    generator, others = torch.Generator().manual_seed(3), 0
    for length in (1, 10, 100, 300):
        prompt = torch.randint(4, 3000, (length,), generator=generator).tolist()
        extra = {"return_token_ids": True, "ignore_eos": True}
        found = complete(server, prompt, extra_body=extra).choices[0].token_ids
        limits = {"cache_budgets": BUDGETS}
        more = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        with torch.no_grad():
            wanted = model.generate(torch.tensor([prompt]), **more, **limits)[0, length:].tolist()
        if found != wanted:
            assert near_tie(model, prompt, wanted, found, **limits)
            others += 1
    assert others <= 1


def test_chat_and_streams(server):
    messages = [{"role": "user", "content": PROMPT}]
    options = {"model": NAME, "max_tokens": 10, "temperature": 0, "messages": messages}
    whole = server.client.chat.completions.create(**options)
    assert whole.choices[0].message.content
    parts = list(server.client.chat.completions.create(stream=True, **options))
    assert "".join(x.choices[0].delta.content or "" for x in parts if x.choices) == whole.choices[0].message.content
    streamed = list(complete(server, stream=True, stream_options={"include_usage": True}))
    assert "".join(x.choices[0].text for x in streamed if x.choices) == complete(server).choices[0].text
    assert streamed[-1].usage.completion_tokens == 12


def test_stop_seed_several_and_logprobs(server):
    text = complete(server, max_tokens=30).choices[0].text
    word = text.split()[2]
    stopped = complete(server, max_tokens=30, stop=[word]).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.text == text[: text.index(word)]
    drawn = [complete(server, "The", temperature=1, seed=7, max_tokens=20).choices[0].text for _ in range(2)]
    assert drawn[0] == drawn[1]
    several = complete(server, n=4, temperature=1, seed=1, max_tokens=20).choices
    assert len({choice.text for choice in several}) > 1
    found = complete(server, logprobs=3, max_tokens=5).choices[0].logprobs
    assert len(found.token_logprobs) == 5
    assert all(max(top.values()) == own for top, own in zip(found.top_logprobs, found.token_logprobs, strict=True))


def test_beams(server):
    beams = complete(server, n=2, max_tokens=6, extra_body={"use_beam_search": True}).choices
    assert len({beam.text for beam in beams}) == 2


def test_errors_are_errors(server):
    for wrong in (
        {"max_tokens": 10**6},
        {"temperature": -1},
        {"n": 0},
        {"top_p": 2},
        {"model": "another"},
        {"prompt": [10**7]},
        {"prompt": ""},
        {"logprobs": 10**4},
    ):
        with pytest.raises(openai.APIStatusError) as caught:
            complete(server, **wrong)
        assert 400 <= caught.value.status_code < 500, wrong
    assert complete(server).choices[0].text


CLIENTS, KILLED, MALFORMED = (
    int(os.environ.get(f"SELATTN_{x}", y))
    for x, y in zip(("CLIENTS", "KILLED", "MALFORMED"), (32, 120, 200), strict=True)
)


def test_clients_that_vanish(server):
    """Clients cut off in the middle of a stream; in the end all blocks are free and the texts are as before."""
    before = complete(server, max_tokens=30).choices[0].text
    draw = random.Random(0)

    async def client(asynchronous, jobs):
        while jobs:
            wait = jobs.pop()
            stream = await asynchronous.completions.create(
                model=NAME,
                prompt=[draw.randrange(4, 3000) for _ in range(draw.randrange(1, 200))],
                max_tokens=400,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    async for _ in stream:
                        pass
            await stream.close()

    async def storm():
        jobs = [draw.uniform(0, 1.5) for _ in range(KILLED)]
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300
        ) as asynchronous:
            await asyncio.gather(*(client(asynchronous, jobs) for _ in range(CLIENTS)))

    asyncio.run(storm())
    assert server.idle()
    assert complete(server, max_tokens=30).choices[0].text == before


def test_requests_that_make_no_sense(server):
    draw, values = random.Random(1), [None, -1, 10**9, "x", [], {}, [[]], 1e308, True, "\x00", [-1], {"a": 1}]
    names = ["prompt", "max_tokens", "temperature", "n", "stop", "seed", "logprobs", "top_p", "stream", "model"]
    answered = 0
    for _ in range(MALFORMED):
        body = {"model": NAME, "prompt": "a", "max_tokens": 1}
        for name in draw.sample(names, draw.randrange(1, 4)):
            body[name] = draw.choice(values)
        with contextlib.suppress(openai.BadRequestError, openai.NotFoundError, openai.UnprocessableEntityError):
            server.client.post("/completions", body=body, cast_to=object)
        answered += 1
    assert answered == MALFORMED
    assert server.idle()
    assert complete(server).choices[0].text
