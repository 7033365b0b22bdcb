package router

import (
	"slices"
	"strings"
)

// seenSeventh returns the seventh hold-out, which was held out until what went to a wrong rule was read. They were chosen by
// the names of their repositories, files and members and of the tasks and categories that their authors gave them, before
// any of their prompts was read and after the model was fitted, where the task is the label. ServiceNow's FastChat has
// MT-bench, whose English questions are fitted on, in other languages; DISC-FinLLM's parts and awesome-chatgpt-prompts-zh
// are in Chinese, Vigogne's questions in French, the others in English. The files prompts.json were put together: of
// templates that the repositories have for programs, each with texts of NYT11 or of CrossNER (science and AI; the files are
// in zjunlp's repository of that model's tools) in its place, five or two of each template (SciRIFF, spaCy-LLM, HippoRAG),
// of templates and texts of the repository (AutoKG), or of one file for each prompt (VerilogEval). Their licences: SciRIFF,
// FastChat, DISC-FinLLM and Vigogne's data are under Apache 2.0, spaCy-LLM, HippoRAG, AutoKG, VerilogEval and
// awesome-chatgpt-prompts-zh under MIT; FinanceMath and MatPlotAgent have none in their repositories.
func seenSeventh() (list []Source) {
	add := func(s Source) { list = append(list, s) }
	byCategory := func(s Source, label, categories string) {
		name := s.Name
		for category := range strings.SplitSeq(categories, "|") {
			s.Name, s.Labels = name+", "+category, map[string]string{category: label}
			add(s)
		}
	}
	for _, language := range strings.Fields("de es fr it nl pt hindi thai") {
		bench := Source{Name: "MT-bench, " + language, Repository: "ServiceNow/FastChat",
			Path: "fastchat/llm_judge/data/mt_bench_" + language + "/question.jsonl", Text: []string{"turns.0"},
			Category: "category", Most: 5}
		byCategory(bench, Extraction, "extraction")
		bench.Most = 4
		byCategory(bench, Code, "coding")
		bench.Most = 3
		byCategory(bench, Reasoning, "math|reasoning")
		bench.Most = 2
		byCategory(bench, General, "writing|roleplay|humanities")
	}
	// one adds a source whose prompts have one label.
	one := func(name, repository, path, label string, most int, text ...string) {
		add(Source{Name: name, Repository: repository, Path: path, Text: text, Label: label, Most: most})
	}
	templates := func(name, repository, path string, most int) Source {
		return Source{Name: name, Repository: repository, Path: path, Text: []string{"prompt"}, Category: "task", Most: most}
	}
	sciriff := templates("SciRIFF", "allenai/SciRIFF", "sciriff/prompts.json", 60)
	byCategory(sciriff, Extraction, "ner|re|te|events")
	byCategory(sciriff, Reasoning, "entailment")
	byCategory(sciriff, General, "summarization")
	spacy := templates("spaCy-LLM", "explosion/spacy-llm", "spacy_llm/prompts.json", 30)
	byCategory(spacy, Extraction, "ner|spancat|rel")
	byCategory(spacy, General, "summarization")
	byCategory(templates("HippoRAG", "OSU-NLP-Group/HippoRAG", "src/hipporag/prompts/prompts.json", 10),
		Extraction, "ner|ner_query|triple_extraction")
	byCategory(templates("AutoKG", "zjunlp/AutoKG", "KG Construction/prompts.json", 10), Extraction, "DuIE2.0|MAVEN|RE-TACRED|SciERC")
	one("MatPlotBench", "thunlp/MatPlotAgent", "benchmark_data/benchmark_instructions.json", Code, 40, "simple_instruction")
	one("VerilogEval", "NVlabs/verilog-eval", "dataset_spec-to-rtl/prompts.json", Code, 40, "prompt")
	one("FinanceMath", "yale-nlp/FinanceMath", "data/validation.json", Reasoning, 40, "tables", "question")
	one("DISC-FinLLM, computing", "FudanDISC/DISC-FinLLM", "data/computing_part.json", Reasoning, 30, "instruction")
	one("DISC-FinLLM, consulting", "FudanDISC/DISC-FinLLM", "data/consulting_part.json", General, 30, "instruction")
	one("awesome-chatgpt-prompts-zh", "PlexPt/awesome-chatgpt-prompts-zh", "prompts-zh.json", General, 40, "prompt")
	one("Vigogne, questions", "bofenghuang/vigogne", "data/instruct/gt_doremiti_instructions.jsonl", General, 0, "instruction")
	slices.SortFunc(list, func(a, b Source) int { return strings.Compare(a.Name, b.Name) })
	return list
}
