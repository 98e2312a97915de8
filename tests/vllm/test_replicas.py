"""vLLM's data parallelism: two replicas on one machine, and one of them killed under load."""

import asyncio
import os
import signal
import subprocess

import openai
import pytest

from tests.vllm.test_server import NAME, Server

pytestmark = pytest.mark.slow

COUNT = 24


def engines(server):
    """The processes of the engines, by the rank in their names."""
    found = subprocess.run(["ps", "-eo", "pid=,pgid=,args="], capture_output=True, text=True, check=True).stdout
    mine = [line.split(None, 2) for line in found.splitlines()]
    return {
        args.rsplit("DP", 1)[1]: int(pid)
        for pid, group, args in mine
        if int(group) == server.process.pid and "EngineCore_DP" in args
    }


async def load(server, after=None):
    """What becomes of many requests at once; `after` is done once they run."""

    async def one(i):
        try:
            found = await client.completions.create(
                model=NAME, prompt=[5 + i] * 20, max_tokens=200, temperature=0, extra_body={"ignore_eos": True}
            )
            return found.choices[0].text
        except openai.APIError as error:
            return error

    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=240) as client:
        tasks = [asyncio.create_task(one(i)) for i in range(COUNT)]
        if after is not None:
            while server.metric("vllm:num_requests_running") < COUNT // 2:
                await asyncio.sleep(0.1)
            after()
        return await asyncio.gather(*tasks)


def test_a_replica_dies(tmp_path):
    """Nobody waits for ever: texts of the other replica are whole and right, those of the dead one are errors.

    vLLM then ends the whole server, which docs/serving.md says.
    """
    server = Server(tmp_path, "--data-parallel-size", "2")
    try:
        server.wait()
        wanted = asyncio.run(load(server))
        assert all(isinstance(text, str) for text in wanted)
        victim = engines(server)["1"]
        found = asyncio.run(load(server, lambda: os.kill(victim, signal.SIGKILL)))
        right = [text == want for text, want in zip(found, wanted, strict=True) if isinstance(text, str)]
        assert all(right)
        assert 0 < len(right) < COUNT
        assert server.process.wait(60) is not None
    finally:
        server.stop()
