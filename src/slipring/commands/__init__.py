"""The commands of ``slipring``, each in a module or package of its name; ``cli`` parses their flags."""
