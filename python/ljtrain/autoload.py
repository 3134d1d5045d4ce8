"""The entry point in the group `torch.backends`: what `import torch` runs.

It must be quick (under 5 ms) and must never break `import torch`. It changes nothing by itself; it
installs an import hook for the parts that were asked for (and for compilation, which acts only
where torch_compile=True), and a part acts when what it changes is imported.
"""

from __future__ import annotations

loaded = False
faults: list[str] = []
active: set[str] = set()


def load() -> None:
    """Called by PyTorch. Any fault is kept for `ljtrain.status()` and named in one line, and
    that is all it does.
    """
    global loaded
    try:
        _install()
    except Exception as fault:
        _remember("autoload", fault)
    loaded = True


def _remember(where: str, fault: Exception) -> None:
    faults.append(f"{where}: {type(fault).__name__}: {fault}")
    try:
        from ljtrain import announce

        announce.say(f"{faults[-1]}; training goes on without it.", "error")
    except Exception:  # even the reporting may be what is broken
        return


def _install() -> None:
    from ljtrain import announce
    from ljtrain.integrations import INTEGRATIONS

    asked = [integration for integration in INTEGRATIONS if integration.asked_for()]
    for integration in asked:
        if integration.module is None:
            announce.say(
                f"{integration.variable} is set, but {integration.part} is not part of this "
                "release: it has no effect.",
                "warning",
            )
    if not asked:
        return
    from ljtrain import versions
    from ljtrain.import_hook import ImportHook

    hook = ImportHook(_remember)
    if any(integration.demanded() for integration in asked):
        for package in versions.TESTED:
            hook.after_import(package, lambda module: _warn_if_untested(module.__name__))
    for integration in asked:
        if integration.module is not None:
            _activate_after(hook, integration.part, list(integration.after))


def _activate_after(hook, part: str, modules: list[str]) -> None:  # type: ignore[no-untyped-def]
    """Waits for the modules one after the other, then activates the part."""
    from ljtrain.integrations import INTEGRATIONS

    if modules:
        hook.after_import(modules[0], lambda _: _activate_after(hook, part, modules[1:]))
        return
    next(integration for integration in INTEGRATIONS if integration.part == part).activate()
    active.add(part)


def _warn_if_untested(package: str) -> None:
    from ljtrain import announce, versions

    sentence = versions.untested(package)
    if sentence is not None:
        announce.say(sentence, "warning")
