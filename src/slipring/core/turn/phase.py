"""How far a turn is."""

from enum import Enum


class Phase(Enum):
    WAITING = "in its lane's queue"
    LOADING = "its parent is being read from the store"
    CHECKING = "what it defines is being compiled"
    PREPARING = "the engine reads the job and may still refuse it"
    RUNNING = "the engine is at work"
    PAUSED = "a rollout waits for its client"
    SAVING = "finished, being made durable"
    ENDED = "its terminal event is out"
