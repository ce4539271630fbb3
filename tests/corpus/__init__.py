"""A labelled corpus of training logs, made from seeds: healthy ones, and ones with a planted fault.

Every case simulates a little training (``training``), lets a loop with a loss scaler, guards and a
clip react to it (``loop``), and states what an experienced engineer would say (``case.Label``).
``python -m tests.corpus.score`` holds the diagnosis to the labels.
"""
