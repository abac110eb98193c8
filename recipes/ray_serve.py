"""Serves a run on the machines of a Ray cluster: replicas that translate what waits together.

command:  python recipes/ray_serve.py tatoeba_en_de --replicas 2 --engine ctranslate2
needs:    pip install "ray[serve]"
request:  curl localhost:8000/translate --json '{"q": "How are you?"}'
score:    not yet measured. The test starts two replicas on one machine

Source: https://docs.ray.io/en/latest/serve/
"""

import argparse
import asyncio

import ray
from ray import serve
from starlette.requests import Request


@serve.deployment(max_ongoing_requests=256)
class Replica:
    """A process with the translator."""

    def __init__(self, run: str, engine: str) -> None:
        from keras_transformer import open_translator

        self.translator = open_translator(run, engine=engine)
        self.translator.prepare(64)

    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.005)
    async def translate(self, sentences: list[str]) -> list[str]:
        return await asyncio.to_thread(self.translator.translate, sentences)

    async def __call__(self, request: Request) -> dict[str, str]:
        return {"translatedText": await self.translate((await request.json())["q"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="a run folder that each machine has at this place")
    parser.add_argument("--replicas", type=int, default=1, help="one core each; default: 1")
    parser.add_argument("--engine", choices=["ctranslate2", "keras"], default="ctranslate2")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--cpus", type=int, help="cores that Ray may use; default: all")
    given = parser.parse_args()
    ray.init(num_cpus=given.cpus, include_dashboard=False)
    serve.start(http_options={"port": given.port})
    replicas = Replica.options(num_replicas=given.replicas, ray_actor_options={"num_cpus": 1})
    serve.run(replicas.bind(given.run, given.engine), route_prefix="/translate", blocking=True)


if __name__ == "__main__":
    main()
