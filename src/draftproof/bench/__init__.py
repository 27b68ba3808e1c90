"""Measuring, and the arithmetic that says what was measured. Above the engine, below commands.

Figures carry their definitions (`metrics`) and the reasons for doubt in them (`noise`).
"""
