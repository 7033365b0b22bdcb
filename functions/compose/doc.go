// Package compose runs the patterns by which several models answer one request (ensemble, debate,
// maestro, graph) within budgets of calls, tokens, cost and time; a function of its caller asks
// them. It asks them only through that function, of type Ask, imports nothing of thaw, and keeps
// no state between runs, so that the server, the simulator and the tests run the same code.
//
// # Patterns
//
// Ensemble asks all members the client's request, each on its own. If more than half of
// the answers, and at least two, are equal after normalising, and that answer is short or
// structured, it is the composition's answer (the idea is self-consistency, Wang et al.
// 2022, arXiv 2203.11171, with several models in place of several samples). Otherwise the
// coordinator writes the answer from all of them.
//
// Debate asks all members, then shows each the answers of the others and asks for a
// revised one (the idea is Du et al. 2023, arXiv 2305.14325). It ends after Plan.Rounds
// revisions, or earlier when no answer changed or all are equal, and closes like an
// ensemble.
//
// Maestro lets the coordinator choose agents (research, reasoning, creative, code) and
// write each a task, asks their members, lets the critic's member review the answers, and
// lets the coordinator write the answer.
//
// Graph lets the coordinator split the request into at most MaxSubtasks subtasks with
// dependencies, as strict JSON that is checked and may be repaired once, runs each subtask
// as soon as those that it needs have ended, and lets the coordinator write the answer.
//
// If the coordinator of a maestro or a graph writes no plan that can be used, each agent or
// member gets the whole request, and the coordinator writes the answer from theirs. If what
// it writes is empty, the first answer to the whole request that meets the client's schema and
// max_tokens is the composition's.
//
// # Loads
//
// Which calls may begin is decided anew whenever one has ended: Ready sorts the members
// into groups, loaded ones first, and the first group is asked. Each member is asked once
// per round, so that with m members of which f fit together a debate of r revisions loads
// at most m + r*(m-f) members, and an ensemble m.
//
// # Bounds
//
// A run makes at most Budget.Calls calls: one is reserved for the synthesis. Once tokens,
// cost or cold starts are spent, or 3/4 of the time, no further call but the synthesis
// begins; what calls in flight and the synthesis use comes on top of tokens and cost.
// A missing answer (a failure, a cold member beyond Plan.Patience, a spent budget) fails
// the run only if fewer than Plan.Quorum answers are left. A missing revision of a debate
// leaves the member's former answer, a missing review of the critic the agents' answers.
//
// # Quotations
//
// An answer is shown to another member only inside a user message, between two lines that
// carry 128 random bits drawn for that message, after the answers in it were complete: no
// answer can contain the mark that closes it. A model can still be persuaded by what it
// reads; it cannot add calls, steps, members or system messages.
package compose
