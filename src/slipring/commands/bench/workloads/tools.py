"""Tool definitions of a typical coding agent."""

from typing import Any

_STRING: dict[str, Any] = {"type": "string"}


def _tool(name: str, description: str, required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        },
        "strict": False,
    }


def _text(description: str) -> dict[str, Any]:
    return {**_STRING, "description": description}


def _whole(description: str, least: int = 0) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "description": description}


CODING_TOOLS: list[dict[str, Any]] = [
    _tool(
        "read_file",
        "Read a file of the workspace. Lines are numbered from 1. Long files are cut: ask for a range of"
        " lines when only a part is of interest, and never guess at what was cut.",
        ["path"],
        path=_text("Path of the file, relative to the root of the workspace."),
        first_line=_whole("First line to read.", 1),
        last_line=_whole("Last line to read, inclusive.", 1),
    ),
    _tool(
        "write_file",
        "Write a whole file, and the directories above it where they are missing. What was in the file before"
        " is lost, so prefer apply_patch for files that exist.",
        ["path", "content"],
        path=_text("Path of the file, relative to the root of the workspace."),
        content=_text("All of the new content."),
        executable={"type": "boolean", "description": "Whether the file is to be executable."},
    ),
    _tool(
        "apply_patch",
        "Change files by a unified diff. Every hunk needs three lines of context that are in the file exactly"
        " as given. Either all hunks are applied or none.",
        ["patch"],
        patch=_text("The diff, with paths relative to the root of the workspace."),
        check_only={"type": "boolean", "description": "Only say whether it would apply."},
    ),
    _tool(
        "list_directory",
        "List a directory with sizes and times of change. Files that version control ignores are left out.",
        ["path"],
        path=_text("Path of the directory, relative to the root of the workspace."),
        depth=_whole("How many levels to descend.", 1),
        pattern=_text("Only names that fit this pattern, as in *.py."),
    ),
    _tool(
        "search_text",
        "Search all files for a regular expression and show each match with its surroundings. Matches are"
        " given in the order of paths and lines; after two hundred the search ends and says so.",
        ["expression"],
        expression=_text("The regular expression, in the syntax of RE2."),
        paths={"type": "array", "items": _STRING, "description": "Only below these paths."},
        context_lines=_whole("Lines to show before and after each match."),
        ignore_case={"type": "boolean", "description": "Whether upper and lower case are the same."},
    ),
    _tool(
        "run_command",
        "Run a command in a shell at the root of the workspace and give its exit code, standard output and"
        " standard error. There is no terminal and no network. It is ended after its time limit.",
        ["command"],
        command=_text("The command line."),
        timeout_s=_whole("Seconds after which it is ended.", 1),
        environment={
            "type": "object",
            "additionalProperties": _STRING,
            "description": "Variables to set for this command alone.",
        },
    ),
    _tool(
        "run_tests",
        "Run tests and report failures with their tracebacks. Without arguments all tests are run, which"
        " takes several minutes: name files or tests wherever the change is small.",
        [],
        targets={"type": "array", "items": _STRING, "description": "Files, directories or single tests."},
        verbosity={
            "type": "string",
            "enum": ["quiet", "normal", "verbose"],
            "description": "How much to say.",
        },
        stop_at_first={"type": "boolean", "description": "Whether to end at the first failure."},
    ),
    _tool(
        "show_changes",
        "Show what has changed in the workspace since a revision, as a unified diff or as a list of files.",
        [],
        revision=_text("A commit, a branch or a tag; the last commit if it is left out."),
        names_only={"type": "boolean", "description": "Only the names of files, with counts of lines."},
        paths={"type": "array", "items": _STRING, "description": "Only these paths."},
    ),
    _tool(
        "read_documentation",
        "Look up a library in the documentation that comes with the workspace. Gives the best passages for a"
        " question, each with the page that it is from.",
        ["library", "question"],
        library=_text("Name of the library, as it is imported."),
        question=_text("What is to be known, in a sentence."),
        version=_text("Version of the library; the installed one if it is left out."),
    ),
    _tool(
        "update_plan",
        "Note what is to be done and how far it has come, for the user to see. Send all steps each time; at"
        " most one of them is in progress.",
        ["steps"],
        steps={
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "text": _STRING,
                    "state": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
                },
                "required": ["text", "state"],
                "additionalProperties": False,
            },
            "description": "The steps, in order.",
        },
        remark=_text("Why the plan has changed."),
    ),
]
