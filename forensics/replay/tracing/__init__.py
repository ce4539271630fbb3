"""One step under the operator trace: where a non-finite value came from, and why."""
