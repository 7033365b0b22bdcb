package router

import (
	"slices"
	"strings"
)

// seenSixth returns the sixth hold-out, which was held out until what went to a wrong rule was read. They were chosen by the
// names of their files and members and of the tasks and categories that their authors gave them, before any of their prompts
// was read and after the model was fitted, where the task is the label; questions about a text, classification and other tasks
// are left out. AlignBench, Taiyi's examples in part, GAOKAO-Bench, CMATH and ChatMed are in Chinese, the Japanese MT-Bench is
// in Japanese, the others are in English. AlignBench's categories are mathematics, logic, writing, roles and questions, its
// subcategory is extraction. Their licences: PIXIU, GPTeacher, FLASK and BIDS's benchmarks are under MIT, AlignBench,
// Qwen2.5-Math, GAOKAO-Bench, NLGraph and FastChat under Apache 2.0 where they have one; Taiyi and ChatMed have their own.
func seenSixth() (list []Source) {
	add := func(s Source) { list = append(list, s) }
	byCategory := func(s Source, label, categories string) {
		name := s.Name
		for category := range strings.SplitSeq(categories, "|") {
			s.Name, s.Labels = name+", "+category, map[string]string{category: label}
			add(s)
		}
	}
	japanese := Source{Name: "Japanese MT-Bench", Repository: "Stability-AI/FastChat",
		Path: "fastchat/llm_judge/data/japanese_mt_bench/question.jsonl", Text: []string{"turns.0"}, Category: "category", Most: 10}
	byCategory(japanese, Extraction, "extraction")
	byCategory(japanese, Reasoning, "reasoning")
	byCategory(japanese, General, "writing|roleplay|humanities")
	align := Source{Name: "AlignBench", Repository: "THUDM/AlignBench", Path: "data/data_v1.1_release.jsonl",
		Text: []string{"question"}, Category: "category", Most: 25}
	byCategory(align, Reasoning, "数学计算|逻辑推理")
	byCategory(align, General, "文本写作|角色扮演|综合问答")
	align.Category = "subcategory"
	byCategory(align, Extraction, "信息抽取")
	add(Source{Name: "PIXIU, financial NER", Repository: "chancefocus/PIXIU", Path: "data/ner/test.jsonl",
		Text: []string{"conversations.0.value"}, Label: Extraction, Most: 30})
	byCategory(Source{Name: "Taiyi, examples", Repository: "DUTIR-BioNLP/Taiyi-LLM", Path: "Taiyi_Instruction_Data_Example.jsonl",
		Text: []string{"conversation.0.human"}, Category: "category"}, Extraction, "NER|RE")
	for _, set := range []string{"NCBI_Disease", "BC5CDR_Chemical"} {
		add(Source{Name: "Biomedical NLP Benchmarks, " + set, Repository: "BIDS-Xu-Lab/Biomedical-NLP-Benchmarks",
			Path: "benchmarks/?NER?" + set + "/datasets/instruction/sentence_level_test.csv",
			Text: []string{"unprocessed"}, Label: Extraction, Most: 20})
	}
	for set, member := range map[string]string{"olympiadbench": "question", "cmath": "question", "minerva_math": "problem"} {
		add(Source{Name: "Qwen2.5-Math, " + set, Repository: "QwenLM/Qwen2.5-Math", Path: "evaluation/data/" + set + "/test.jsonl",
			Text: []string{member}, Label: Reasoning, Most: 20})
	}
	for _, task := range []string{"connectivity", "cycle", "flow", "hamilton", "matching", "shortest_path", "topology"} {
		add(Source{Name: "NLGraph, " + task, Repository: "Arthur-Heng/NLGraph", Path: "NLGraph/" + task + "/main.json",
			Text: []string{"question"}, Label: Reasoning, Most: 5})
	}
	for _, subject := range []string{"Math_I", "Physics"} {
		add(Source{Name: "GAOKAO-Bench, " + subject, Repository: "OpenLMLab/GAOKAO-Bench",
			Path: "Data/Objective_Questions/2010-2022_" + subject + "_MCQs.json", List: "example",
			Text: []string{"question"}, Label: Reasoning, Most: 20})
	}
	add(Source{Name: "GPTeacher, code", Repository: "teknium1/GPTeacher", Path: "Codegen/codegen-instruct.json",
		Text: []string{"instruction", "input"}, Label: Code, Most: 60})
	add(Source{Name: "GPTeacher, roles", Repository: "teknium1/GPTeacher", Path: "Roleplay/roleplay-simple-deduped-roleplay-instruct.json",
		Text: []string{"instruction", "input"}, Label: General, Most: 30})
	byCategory(Source{Name: "FLASK", Repository: "kaistAI/FLASK", Path: "evaluation_set/flask_evaluation.jsonl",
		Text: []string{"instruction"}, Category: "task"}, Code, "Leetcode")
	add(Source{Name: "ChatMed, consultations", Repository: "michael-wzhu/ChatMed",
		Path: "src/web_services/test_examples/ChatMed-Consult_test.json",
		Text: []string{"query"}, Label: General, Most: 30})
	slices.SortFunc(list, func(a, b Source) int { return strings.Compare(a.Name, b.Name) })
	return list
}
