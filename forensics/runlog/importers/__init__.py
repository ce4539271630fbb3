"""Importers of the logs that people already have, one format a file, listed explicitly."""

from __future__ import annotations

from forensics.runlog.importers.apex import apex
from forensics.runlog.importers.boxed_table import boxed_table
from forensics.runlog.importers.composer import composer
from forensics.runlog.importers.console_table import console_table
from forensics.runlog.importers.csv_columns import csv_columns
from forensics.runlog.importers.darknet import darknet
from forensics.runlog.importers.deepspeed import deepspeed
from forensics.runlog.importers.espnet import espnet
from forensics.runlog.importers.fairseq import fairseq
from forensics.runlog.importers.hf_history_csv import hf_history_csv
from forensics.runlog.importers.hf_model_card import hf_model_card
from forensics.runlog.importers.hf_stdout import hf_stdout
from forensics.runlog.importers.hf_trainer_state import hf_trainer_state
from forensics.runlog.importers.icefall import icefall
from forensics.runlog.importers.importer import Importer
from forensics.runlog.importers.insightface import insightface
from forensics.runlog.importers.json_history import json_history
from forensics.runlog.importers.json_in_lines import json_in_lines
from forensics.runlog.importers.jsonl_columns import jsonl_columns
from forensics.runlog.importers.keras_csv import keras_csv
from forensics.runlog.importers.kohya_bar import kohya_bar
from forensics.runlog.importers.lightning_csv import lightning_csv
from forensics.runlog.importers.llama_factory import llama_factory
from forensics.runlog.importers.llm_c import llm_c
from forensics.runlog.importers.marian import marian
from forensics.runlog.importers.megatron_deepspeed import megatron_deepspeed
from forensics.runlog.importers.megatron_lm import megatron_lm
from forensics.runlog.importers.metric_logger_json import metric_logger_json
from forensics.runlog.importers.metric_logger_text import metric_logger_text
from forensics.runlog.importers.mlflow_metric import mlflow_metric
from forensics.runlog.importers.modded_nanogpt import modded_nanogpt
from forensics.runlog.importers.ms_swift import ms_swift
from forensics.runlog.importers.nanogpt import nanogpt
from forensics.runlog.importers.nemo_text import nemo_text
from forensics.runlog.importers.olmo import olmo
from forensics.runlog.importers.openmmlab_json import openmmlab_json
from forensics.runlog.importers.openmmlab_text import openmmlab_text
from forensics.runlog.importers.opennmt import opennmt
from forensics.runlog.importers.print_lines import print_lines
from forensics.runlog.importers.step_table_text import step_table_text
from forensics.runlog.importers.tensorboard_events import tensorboard_events
from forensics.runlog.importers.tensorboard_scalar import tensorboard_scalar
from forensics.runlog.importers.torchtitan import torchtitan
from forensics.runlog.importers.ultralytics_csv import ultralytics_csv
from forensics.runlog.importers.ultralytics_text import ultralytics_text
from forensics.runlog.importers.verl import verl
from forensics.runlog.importers.wandb_csv import wandb_csv
from forensics.runlog.importers.wandb_history import wandb_history

IMPORTERS: tuple[Importer, ...] = (
    hf_trainer_state,
    hf_stdout,
    hf_history_csv,
    hf_model_card,
    llama_factory,
    ms_swift,
    lightning_csv,
    ultralytics_csv,
    ultralytics_text,
    keras_csv,
    wandb_csv,
    wandb_history,
    tensorboard_events,
    tensorboard_scalar,
    mlflow_metric,
    megatron_deepspeed,
    megatron_lm,
    fairseq,
    torchtitan,
    olmo,
    nanogpt,
    llm_c,
    step_table_text,
    modded_nanogpt,
    composer,
    insightface,
    espnet,
    icefall,
    openmmlab_text,
    openmmlab_json,
    metric_logger_text,
    metric_logger_json,
    nemo_text,
    verl,
    boxed_table,
    console_table,
    darknet,
    opennmt,
    marian,
    kohya_bar,
    deepspeed,
    apex,
    json_history,
    jsonl_columns,
    json_in_lines,
    csv_columns,
    print_lines,
)
"""Every format, the particular ones before the general ones."""
