"""Starts, supervises and stops processes, and sets their process-wide state."""

from headrace.processes.children import Child as Child
from headrace.processes.children import become_child as become_child
from headrace.processes.children import die_with_parent as die_with_parent
from headrace.processes.children import end_children as end_children
from headrace.processes.children import (
    finalize_and_kill_descendants as finalize_and_kill_descendants,
)
from headrace.processes.children import kill_descendants_of_dead as kill_descendants_of_dead
from headrace.processes.children import new_mark as new_mark
from headrace.processes.defaults import keep_torch_defaults_apart as keep_torch_defaults_apart
from headrace.processes.defaults import library_defaults as library_defaults
from headrace.processes.defaults import restore_torch_defaults as restore_torch_defaults
from headrace.processes.defaults import resumed_in as resumed_in
from headrace.processes.defaults import torch_defaults_kept as torch_defaults_kept
from headrace.processes.fork_server import allow_children as allow_children
from headrace.processes.fork_server import main_hidden as main_hidden
from headrace.processes.fork_server import process_context as process_context
from headrace.processes.fork_server import start_fork_server as start_fork_server
from headrace.processes.hardware import allow_open_files as allow_open_files
from headrace.processes.hardware import check_device as check_device
from headrace.processes.hardware import cores as cores
from headrace.processes.hardware import full_float32 as full_float32
from headrace.processes.hardware import num_cores as num_cores
from headrace.processes.hardware import pinned as pinned
from headrace.processes.hardware import process_started as process_started
from headrace.processes.hardware import set_affinity as set_affinity
from headrace.processes.hardware import torch_threads as torch_threads
from headrace.processes.hardware import use_batch_scheduling as use_batch_scheduling
from headrace.processes.hardware import yield_to_waking_threads as yield_to_waking_threads
from headrace.processes.memory import keep_freed_memory as keep_freed_memory
from headrace.processes.memory import memory_file as memory_file
from headrace.processes.memory import return_freed_memory as return_freed_memory
from headrace.processes.seeding import OwnGenerators as OwnGenerators
from headrace.processes.seeding import global_generators_kept as global_generators_kept
from headrace.processes.seeding import seed_global_generators as seed_global_generators
from headrace.processes.signals import signals_held as signals_held
from headrace.processes.signals import stop_signals as stop_signals
from headrace.processes.signals import unblock_signals_for_children as unblock_signals_for_children
