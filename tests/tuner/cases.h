/* The cases; main.c runs them in this order. */
#pragma once

void no_rule_touches_nothing(void);
void rules_are_obeyed(void);
void users_variables_win(void);
void small_messages_keep_nccls_count(void);
void collnet_keeps_its_count(void);
void old_tables_are_not_overrun(void);
void chunk_sizes(void);
void wave_rule(void);
void decisions_are_told_once(void);
void bad_profiles_are_told_once(void);
void switched_off(void);
void asking_does_not_allocate(void);
void many_communicators(void);
void threads_ask_at_once(void);
void random_rules(int profiles, int rules, int questions);
