"""Serve a policy to programs that call a model through an API."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from seeupo.errors import EndpointError
from seeupo.evaluation.evaluate import model_of, resolve_options
from seeupo.inference import make_sampler
from seeupo.models.loading import load_policy
from seeupo.rollout.gateway import missing_packages
from seeupo.types import SamplingParameters

WORK_SECONDS = 0.5
"""Time without a call after which the server looks whether it has to stop."""


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of a server.

    Attributes:
        policy: Run directory, model folder or name.
        checkpoint: Checkpoint of the run; None for the final policy.
        port: Port on loopback; 0 for a free one.
        temperature: Temperature of calls that name none; None for the run's, or 1.
        max_tokens: Maximum length of any response; None for the run's, or 256.
        concurrency: Number of responses that are sampled at a time; None for the run's, or 32.
        key: Key that clients must send; None for no key.
    """

    policy: str
    checkpoint: int | None = None
    port: int = 8000
    temperature: float | None = None
    max_tokens: int | None = None
    concurrency: int | None = None
    key: str | None = None


def serve(
    options: ServeOptions, on_start: Callable[[str], None], *, running: Callable[[], bool] = lambda: True
) -> None:
    """Answer calls until interrupted.

    Args:
        on_start: Called with the address of the API, up to /v1, when it can be used.
        running: Asked now and then whether to continue.
    """
    if missing := missing_packages():
        raise EndpointError(f"serving needs {' and '.join(missing)}: pip install 'seeupo[agents]'")
    from seeupo.rollout.gateway.responder import Responder
    from seeupo.rollout.gateway.server import GatewayApp, listen, serving

    settings = resolve_options(
        policy=options.policy,
        checkpoint=options.checkpoint,
        temperature=options.temperature,
        max_tokens=options.max_tokens,
        concurrency=options.concurrency,
    )
    with closing(listen(options.port)) as listener:
        policy = load_policy(model_of(options.policy, settings.checkpoint))
        responder = Responder(
            policy,
            make_sampler(policy, training=False, max_rows=settings.concurrency),
            name=options.policy,
            parameters=SamplingParameters(max_tokens=settings.max_tokens, temperature=settings.temperature),
            key=options.key,
        )
        with serving(GatewayApp(responder, options.policy), listener) as address:
            on_start(address)
            while running():
                responder.work(WORK_SECONDS)
