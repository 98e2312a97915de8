"""Several replicas on one machine, and one of them killed under load."""

import asyncio
import os
import signal
import subprocess

import openai
import pytest

from tests.vllm.serving import random_prompts
from tests.vllm.test_server import NAME, Server

pytestmark = pytest.mark.slow

COUNT, TOKENS = 24, 200


def engines(server):
    """The processes of the engines, by the rank in their names."""
    found = subprocess.run(["ps", "-eo", "pid=,pgid=,args="], capture_output=True, text=True, check=True).stdout
    mine = [line.split(None, 2) for line in found.splitlines()]
    ours = [(pid, args) for pid, group, args in mine if int(group) == server.process.pid and "EngineCore_DP" in args]
    return {args.rsplit("DP", 1)[1]: int(pid) for pid, args in ours}


async def load(servers, after=None):
    """How each of many requests ends that come at once; `after` is done while they run."""

    async def one(client, prompt):
        options = {"max_tokens": TOKENS, "temperature": 0, "extra_body": {"ignore_eos": True}}
        try:
            found = await client.completions.create(model=NAME, prompt=prompt, **options)
            return found.choices[0].finish_reason
        except openai.APIError:
            return "error"

    options = {"api_key": "none", "max_retries": 0, "timeout": 300}
    clients = [openai.AsyncOpenAI(base_url=f"{server.url}/v1", **options) for server in servers]
    prompts = random_prompts([20] * COUNT, 3000)
    tasks = [asyncio.create_task(one(clients[i % len(clients)], prompt)) for i, prompt in enumerate(prompts)]
    if after is not None:
        while not all(server.metric("vllm:num_requests_running") for server in servers):
            await asyncio.sleep(0.1)
        after()
    return await asyncio.gather(*tasks)


def test_a_replica_of_one_server_dies(tmp_path):
    """vLLM then ends the whole server: every request ends, and none that was cut short looks whole."""
    server = Server(tmp_path, "--data-parallel-size", "2")
    try:
        server.wait()
        assert asyncio.run(load([server])) == ["length"] * COUNT
        found = asyncio.run(load([server], lambda: os.kill(engines(server)["1"], signal.SIGKILL)))
        assert set(found) <= {"length", "abort", "error"}
        assert found != ["length"] * COUNT
        assert server.process.wait(60) is not None
    finally:
        server.stop()


def test_one_of_two_servers_dies(tmp_path):
    """The other does not notice."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    servers = [Server(folder) for folder in folders]
    try:
        for server in servers:
            server.wait()
        victim = servers[0].process.pid
        found = asyncio.run(load(servers, lambda: os.killpg(victim, signal.SIGKILL)))
        assert "error" in found[::2]
        assert found[1::2] == ["length"] * (COUNT // 2)
    finally:
        for server in servers:
            server.stop()
