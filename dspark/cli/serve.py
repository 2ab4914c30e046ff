"""`dspark serve coordinator|frontend|verify|draft`: runs one process by hand, with static
endpoints, without Ray.

Options are the keys of the room's configuration: `--page-size 32` sets `page_size`. They override
the environment (`DSPARK_<SECTION>__<KEY>`), which overrides the file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from typing import Any

from dspark.cli.options import add_keys, tell, wait_s


def add_commands(commands: Any) -> None:
    from deploy.service_registry import ROOMS, config_class

    parser = commands.add_parser(
        "serve",
        help="run one process by hand, without Ray",
        description="dspark serve ROLE --help lists the options of that role.",
    )
    parser.set_defaults(run=_serve)
    roles = parser.add_subparsers(dest="role", required=True, metavar="ROLE")
    for role in ROOMS:
        cls = config_class(role)
        said = (cls.__doc__ or "").strip()
        of_role = roles.add_parser(role.value, help=said, description=said)
        add = of_role.add_argument
        add("--config", metavar="FILE", help="YAML file with a section for this role")
        add("--name", default=f"{role}/0", help="replica name for people")
        add("--ready-json", action="store_true", help="print one JSON line on stdout when serving")
        add("--grace-s", type=wait_s, default=10, help="time to finish what runs after SIGTERM")
        add("--parent-pid", type=int, metavar="PID", help="end when this parent process has ended")
        forms = ["auto", "json", "console"]
        add("--log-format", default="auto", choices=forms, help="lines on stderr")
        add_keys(of_role, cls)


def _serve(args: argparse.Namespace) -> int:
    from deploy.service_registry import load_settings, start_room
    from deploy.topology import ProcessRole
    from dspark.runtime.process import end_with
    from dspark.runtime.shell import ShellProcess, run_until_signal
    from dspark.runtime.telemetry import configure_logging

    if args.parent_pid is not None:
        end_with(args.parent_pid)
    role = ProcessRole(args.role)
    settings = load_settings(role, file=args.config, environ=os.environ, flags=vars(args))
    configure_logging(role=args.role, name=args.name, fmt=args.log_format)

    def ready(process: ShellProcess) -> None:
        http = process.http_url
        if args.ready_json:
            line = {
                "endpoint": process.endpoint,
                "pid": os.getpid(),
                "incarnation": process.incarnation,
            }
            tell(json.dumps(line | ({"http": http} if http else {})))
        else:
            tell(f"{args.name} serves at {process.endpoint}" + (f" and {http}/v1" if http else ""))

    asyncio.run(
        run_until_signal(
            lambda: start_room(role, settings, name=args.name), grace_s=args.grace_s, ready=ready
        )
    )
    return 0
