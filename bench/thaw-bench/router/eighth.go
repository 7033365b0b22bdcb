package router

import (
	"slices"
	"strings"
)

// seenEighth returns the eighth hold-out, which was held out until what went to a wrong rule was read. They were chosen
// by the names of their repositories, files and members and of the tasks and categories that their authors gave them,
// before any of their prompts was read and after the examples were written, where the task is the label. IEPile in part
// and LexEval are in Chinese, the others in English. The files prompts.json were put together: of LegalBench's and
// ExtractGPT's templates with rows of their tables, of those of the evaluation of ChatGPT with sentences of reviews of
// laptops, two of each, of the user's turn of SQL-Eval's template with its questions, without the tables, and of the
// questions of Odyssey-Math. Their licences: LexEval, ToRA, Odyssey-Math, InterCode and CRUXEval are under MIT, BBEH,
// ExtractGPT, CodeFuse's evaluation and SQL-Eval under Apache 2.0, IEPile under CC BY-NC-SA 4.0, medAlpaca under GPL 3,
// InstructionWild for research only; LegalBench and the evaluation of ChatGPT have none at the top of their repositories.
func seenEighth() (list []Source) {
	add := func(s Source) { list = append(list, s) }
	// one adds a source whose prompts have one label.
	one := func(name, repository, path, label string, most int, text ...string) {
		add(Source{Name: name, Repository: repository, Path: path, Text: text, Label: label, Most: most})
	}
	byCategory := func(s Source, label, categories string) {
		name := s.Name
		for category := range strings.SplitSeq(categories, "|") {
			s.Name, s.Labels = name+", "+category, map[string]string{category: label}
			add(s)
		}
	}
	for _, task := range []string{"NER", "RE", "EE", "SPO"} {
		one("IEPile, "+task, "zjunlp/IEPile", "data/"+task+"/test.json", Extraction, 12, "instruction")
	}
	for task, label := range map[string]string{"2_5": Extraction, "3_4": Reasoning, "3_5": Reasoning, "5_3": General, "5_4": General} {
		one("LexEval, "+task, "CSHaitao/LexEval", "data/"+task+".json", label, 15, "instruction", "input")
	}
	legal := Source{Name: "LegalBench", Repository: "HazyResearch/legalbench", Path: "tasks/prompts.json",
		Text: []string{"prompt"}, Category: "task", Most: 10}
	byCategory(legal, Extraction, "definition_extraction|ssla_plaintiff|ssla_individual_defendants|ssla_company_defendants")
	byCategory(legal, Reasoning, "diversity_1|diversity_2|diversity_3|diversity_4|diversity_5|diversity_6")
	byCategory(Source{Name: "Evaluation of ChatGPT, ABSA", Repository: "FreedomIntelligence/Evaluation-of-ChatGPT-on-Information-Extraction",
		Path: "4_ABSA/prompt/prompts.json", Text: []string{"prompt"}, Category: "task"}, Extraction, "AE|OE|AESC|Pair|Triplet")
	one("ExtractGPT, OA-Mine", "wbsg-uni-mannheim/ExtractGPT", "prompts/prompts.json", Extraction, 40, "prompt")
	for task := range strings.FieldsSeq("boolean_expressions multistep_arithmetic object_counting object_properties shuffled_objects " +
		"spatial_reasoning temporal_sequence time_arithmetic web_of_lies zebra_puzzles boardgame_qa") {
		add(Source{Name: "BBEH, " + task, Repository: "google-deepmind/bbeh", Path: "bbeh/benchmark_tasks/bbeh_" + task + "/task.json",
			List: "examples", Text: []string{"input"}, Label: Reasoning, Most: 5})
	}
	one("GSM-Hard", "microsoft/ToRA", "src/data/gsm-hard/test.jsonl", Reasoning, 30, "input")
	one("Odyssey-Math", "protagolabs/odyssey-math", "prompts.json", Reasoning, 40, "question")
	one("InterCode, NL2Bash", "princeton-nlp/intercode", "data/nl2bash/nl2bash_fs_[1-4].json", Code, 40, "query")
	one("CRUXEval, requests for its functions", "facebookresearch/cruxeval", "data/data_generating_prompt.jsonl", Code, 30, "text")
	one("CodeFuse's evaluation, Pandas", "codefuse-ai/codefuse-evaluation",
		"codefuseEval/data/codedatascience/CodeCompletion/Pandas/Pandas.jsonl", Code, 40, "prompt")
	one("SQL-Eval", "defog-ai/sql-eval", "prompts/prompts.json", Code, 40, "prompt")
	byCategory(Source{Name: "InstructionWild", Repository: "XueFuzhao/InstructionWild", Path: "data_v2/user_1.jsonl",
		Text: []string{"instruction"}, Category: "instruction_type", Most: 40}, General, "Open QA|Chat|Brainstorming|Rewrite|Summarization")
	one("medAlpaca, questions", "kbressem/medAlpaca", "medical_meadow_small.json", General, 40, "input")
	slices.SortFunc(list, func(a, b Source) int { return strings.Compare(a.Name, b.Name) })
	return list
}
