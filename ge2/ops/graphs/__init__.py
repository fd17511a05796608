"""Operations that hold graphs: control flow, rules of the user, solves, effects, fused regions."""
