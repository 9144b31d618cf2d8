"""Processes: how they are started and ended, and what each sets for itself."""

from headrace.process.child import Child as Child
from headrace.process.child import die_with_parent as die_with_parent
from headrace.process.child import end_children as end_children
from headrace.process.child import end_kin_of_dead as end_kin_of_dead
from headrace.process.child import finish_own_kin as finish_own_kin
from headrace.process.child import new_mark as new_mark
from headrace.process.defaults import keep_torch_defaults_apart as keep_torch_defaults_apart
from headrace.process.defaults import library_defaults as library_defaults
from headrace.process.defaults import restore_torch_defaults as restore_torch_defaults
from headrace.process.defaults import resumed_in as resumed_in
from headrace.process.defaults import torch_defaults_kept as torch_defaults_kept
from headrace.process.fork_server import allow_children as allow_children
from headrace.process.fork_server import fork_server_from_here as fork_server_from_here
from headrace.process.fork_server import (
    let_environments_start_processes as let_environments_start_processes,
)
from headrace.process.fork_server import main_hidden as main_hidden
from headrace.process.fork_server import process_context as process_context
from headrace.process.fork_server import start_fork_server as start_fork_server
from headrace.process.fork_server import starting as starting
from headrace.process.machine import allow_open_files as allow_open_files
from headrace.process.machine import check_device as check_device
from headrace.process.machine import cores as cores
from headrace.process.machine import full_float32 as full_float32
from headrace.process.machine import give_way as give_way
from headrace.process.machine import num_cores as num_cores
from headrace.process.machine import pinned as pinned
from headrace.process.machine import process_started as process_started
from headrace.process.machine import push_nobody_aside as push_nobody_aside
from headrace.process.machine import stay_on as stay_on
from headrace.process.machine import torch_threads as torch_threads
from headrace.process.memory import keep_freed_memory as keep_freed_memory
from headrace.process.memory import memory_file as memory_file
from headrace.process.memory import return_freed_memory as return_freed_memory
from headrace.process.seeding import OwnGenerators as OwnGenerators
from headrace.process.seeding import global_generators_kept as global_generators_kept
from headrace.process.seeding import seed_global_generators as seed_global_generators
from headrace.process.signals import let_children_hear as let_children_hear
from headrace.process.signals import signals_held as signals_held
from headrace.process.signals import stop_signals as stop_signals
