"""Reports: one set of figures as JSON, Markdown and a self-contained HTML page."""

from evals.report.model import Plot, Report, Section, Series, Table
from evals.report.write import write_report

__all__ = ["Plot", "Report", "Section", "Series", "Table", "write_report"]
