"""Runs on tables: from a file and its schema to a folder with model, record and ledgers."""

from dpvd.runs.tables.choice import TableChoice
from dpvd.runs.tables.execute import execute_table, resume_table
from dpvd.runs.tables.load import TrainedTable
from dpvd.runs.tables.metrics import INTERVAL
from dpvd.runs.tables.prepare import PreparedTable, prepare_table

__all__ = [
    "INTERVAL",
    "PreparedTable",
    "TableChoice",
    "TrainedTable",
    "execute_table",
    "prepare_table",
    "resume_table",
]
