package router

import (
	"slices"
	"strings"
)

// seenNinth returns the ninth hold-out, which was held out until what went to a wrong rule was read. They were chosen by the
// names of their repositories, files and members and of the tasks and categories that their authors gave them, before any of
// their prompts was read, where the task is the label; the names were known when the last examples were written, and examples
// in the form of one of them were left out. Questions to a doctor, requests to an assistant, quiz questions, roles, writing
// and summaries are general; sequences of steps of a program, exercises and questions of programmers are code. Huatuo's
// questions, CFBench, CFBenchmark and half of TAL-SCQ5K are in Chinese, the questions of multilingual CoNaLa in Spanish,
// Japanese and Russian, the others in English. The files prompts.json were put together: of the patterns of fabric and the
// templates of Promptify with sentences of NYT11 (six, two), a pattern whose name begins with extract_ as extraction; of the
// exercises in Python of Aider's benchmark with the file to fill in; of the first question of each task of reasoning-gym's
// gallery that is in one of seven folders; of the rules and every 20th question of KOR-Bench in its template; of every 100th
// question of TAL-SCQ5K with its options; of what lineage-bench generates for 8 people; of every 20th utterance of each
// intent of Snips; of subject and message of LiveQA's questions; of roles in files of their own; and of every 12th row of
// CFBenchmark. Their licences: AlpaCare's data are under CC BY-NC 4.0, Snips' under CC0, multilingual CoNaLa under CC BY-SA
// 4.0, Huatuo, llm-foundry, CFBenchmark, SLIMER, Promptify, InfiBench, CodeGen, reasoning-gym and KOR-Bench under Apache 2.0,
// fabric, the roles and lineage-bench under MIT; LiveQA, CFBench, Aider's benchmark and TAL-SCQ5K have none at the top of
// their repositories.
func seenNinth() (list []Source) {
	add := func(s Source) { list = append(list, s) }
	// one adds a source whose prompts have one label.
	one := func(name, repository, path, label string, most int, text ...string) {
		add(Source{Name: name, Repository: repository, Path: path, Text: text, Label: label, Most: most})
	}
	byCategory := func(s Source, label string, most int, categories string) {
		s.Labels, s.Most = map[string]string{}, most
		for category := range strings.SplitSeq(categories, "|") {
			s.Labels[category] = label
		}
		add(s)
	}
	one("iCliniq, questions", "XZhang97666/AlpaCare", "data/reference_outputs/claude-2/iCliniq_output.jsonl", General, 35, "prompt")
	one("Huatuo, questions", "SCIR-HI/Huatuo-Llama-Med-Chinese", "benchmark/question.json", General, 35, "question")
	one("LiveQA, medical", "abachaa/LiveQA_MedicalTask_TREC2017", "TestDataset/prompts.json", General, 35, "prompt")
	one("Snips, seven intents", "sonos/nlu-benchmark", "2017-06-custom-intent-engines/prompts.json", General, 35, "prompt")
	one("TriviaQA", "mosaicml/llm-foundry", "scripts/eval/local_data/world_knowledge/triviaqa_sm_sub.jsonl", General, 35, "context")
	one("roles", "mustvlad/ChatGPT-System-Prompts", "prompts/prompts.json", General, 40, "prompt")
	constraints := Source{Name: "CFBench", Repository: "PKU-Baichuan-MLSystemLab/CFBench", Path: "data/cfbench_data.json",
		Text: []string{"prompt"}, Category: "scenario"}
	byCategory(constraints, General, 60, "文学|内容创作与编辑|生活创作|公文撰写|新闻发布与报道|翻译|内容创作|市场营销与推广|问答|运动计划|广告文案生成|"+
		"StoryGeneration|OpenQA|AncientPoem|Summary|Composition|LyricGeneration|ProseGeneration|JinYongGeneration|Couplet|MusicComment|"+
		"ProductDesc|Translation|Explanation")
	byCategory(constraints, Extraction, 20, "NER|KeywordRecognition|关键词抽取|Information_Extraction")
	byCategory(constraints, Reasoning, 20, "NLI|Textual_Entailment|MathQA|关系判断（蕴含/中立/矛盾）|Cot")
	fabric := Source{Name: "fabric, patterns", Repository: "danielmiessler/fabric", Path: "patterns/prompts.json",
		Text: []string{"prompt"}, Category: "task"}
	byCategory(fabric, General, 30, General)
	byCategory(fabric, Extraction, 40, Extraction)
	one("CFBenchmark, companies and products", "TongjiFinLab/CFBenchmark", "CFBenchmark-basic/data/prompts.json", Extraction, 40, "prompt")
	one("SLIMER, PileNER", "andrewzamai/SLIMER", "data/pileNER/5pos_5neg_perNE_top391NEs_TrueDef/validation.jsonl", Extraction, 40,
		"instruction", "input")
	one("Promptify", "promptslab/Promptify", "promptify/prompts/templates/prompts.json", Extraction, 24, "prompt")
	one("InfiBench", "infi-coder/infibench-evaluation-harness", "bigcode_eval/infibench/batched_prompts/suite_v2.1.csv", Code, 60,
		"content_prompt")
	for _, language := range []string{"es", "ja", "ru"} {
		one("CoNaLa, "+language, "zorazrw/multilingual-conala", "dataset/test/"+language+"_test.json", Code, 15, "intent")
	}
	one("MTPB", "salesforce/CodeGen", "codegen1/benchmark/mtpb.jsonl", Code, 40, "prompts")
	one("Aider's exercises in Python", "Aider-AI/polyglot-benchmark", "python/prompts.json", Code, 40, "prompt")
	one("reasoning-gym, gallery", "open-thought/reasoning-gym", "prompts.json", Reasoning, 60, "prompt")
	one("KOR-Bench, logic, operations and puzzles", "KOR-Bench/KOR-Bench", "data/prompts.json", Reasoning, 40, "prompt")
	one("TAL-SCQ5K", "math-eval/TAL-SCQ5K", "prompts.json", Reasoning, 40, "prompt")
	one("lineage-bench", "fairydreaming/lineage-bench", "prompts.json", Reasoning, 16, "prompt")
	slices.SortFunc(list, func(a, b Source) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// readBefore returns sources that were read before they were added, for fitting; with what is in wraps.txt and puzzles.txt they
// were added after what the ninth hold-out got wrong, and before the tenth was chosen. Their files prompts.json were put together:
// of the templates of promptsource for the data sets of each of these kinds, with sentences of NYT11, problems of gsm8k and, for
// inference, pairs of ANLI and MED; of pairs of ANLI and MED in eight templates; of the questions of two data sets of LLM Reasoners;
// of five tasks of natural-instructions-code; of InstructABSA's instructions for terms with reviews of restaurants; of the English
// of every 250th command of NL2Bash; of LLMZoo's questions by category; and of OpenCompass's templates with problems and questions of
// sources above. Their licences: OpenCompass, promptsource, LLM Reasoners and LLMZoo
// are under Apache 2.0, InstructABSA under MIT, NL2Bash under GPL 3, ANLI under CC BY-NC 4.0, MED under CC BY-SA 4.0,
// natural-instructions-code has none.
func readBefore() (list []Source) {
	add := func(name, repository, label, category string) {
		list = append(list, Source{Name: name, Repository: repository, Path: "prompts.json", Text: []string{"prompt"},
			Category: "task", Labels: map[string]string{category: label}})
	}
	for kind, label := range map[string]string{"inference": Reasoning, "mathematics": Reasoning, "causes and effects": Reasoning,
		"summaries": General, "writing": General, "questions": General, "entities and relations": Extraction, "programs": Code} {
		add("promptsource, "+kind, "bigscience-workshop/promptsource", label, kind)
	}
	for _, label := range []string{Reasoning, General, Code} {
		add("templates of OpenCompass", "InternLM/opencompass", label, label)
	}
	add("tasks of natural-instructions-code", "eshaanpathak/natural-instructions-code", Reasoning, Reasoning)
	add("tasks of natural-instructions-code", "eshaanpathak/natural-instructions-code", General, General)
	add("ANLI in templates", "facebookresearch/anli", Reasoning, Reasoning)
	add("MED in templates", "verypluming/MED", Reasoning, Reasoning)
	add("LLM Reasoners", "maitrix-org/llm-reasoners", Reasoning, Reasoning)
	add("NL2Bash", "TellinaTool/nl2bash", Code, Code)
	add("InstructABSA", "kevinscaria/InstructABSA", Extraction, Extraction)
	add("LLMZoo", "FreedomIntelligence/LLMZoo", General, General)
	add("LLMZoo", "FreedomIntelligence/LLMZoo", Reasoning, Reasoning)
	slices.SortFunc(list, func(a, b Source) int {
		return strings.Compare(a.Name+sourceLabel(a), b.Name+sourceLabel(b))
	})
	return list
}
