package router

import (
	"maps"
	"slices"
	"strings"
)

// heldOut returns the sources that are held out, the tenth hold-out. They were chosen by the names of their repositories, files
// and members and of the tasks and categories that their authors gave them, before any of their prompts was read, where the task
// is the label; the names were known when the last examples were written, and two in the form of one of them were left out. Plans, proofs,
// spatial, causal and temporal deduction, entailment, puzzles and calculations are reasoning; functions to write and prompts for
// programming are code; templates that ask for entities, relations, facts, claims or aspects are extraction; advice, chat, roles
// played, definitions, questions to a doctor, translation and writing are general. Tengu-Bench is in Japanese, CG-Eval,
// CharacterEval and half of LeetCode in Chinese, the others in English. Each file prompts.json holds prompts with their label as
// task: two instances of each file of PlanBench's tasks 1 to 7; the statements in words of PutnamBench; premise and hypothesis of
// ConTRoL, with the three answers named; story and question of StepGame and of CLadder's four files; the questions with options of
// arithmetic and causality of TRAM; the questions of fifteen categories (general), two (reasoning) and one (extraction) of
// Tengu-Bench and of CG-Eval's definitions and short answers (general) and calculations (reasoning); the contexts of
// CharacterEval; the first lines of the English conversations of chatterbot-corpus but for computers, coding and support; a
// question of every 140th file of MedQuAD; the prompts of GPTs whose names have no word of programming, data or mathematics; three
// folders of LLM-Prompt-Library; the problems from Rosalind of BioCoder; LeetCode's prompts of DeepSeek-Coder; a prompt of each
// of 60 files of ReCode's perturbations; PandasEval and NumpyEval of PyCodeGPT; the templates for extraction of GraphRAG, Graphiti,
// Mem0 and knowledge_graph, filled with sentences of NYT11; and six rows of each of six data sets of aspects in LLM-Sentiment's
// template. Their licences: PlanBench, StepGame, CLadder, TRAM, DeepSeek-Coder, PyCodeGPT, GraphRAG and LLM-Sentiment are under MIT,
// Tengu-Bench's evaluation, ReCode, Graphiti and Mem0 under Apache 2.0, MedQuAD under CC BY 4.0, chatterbot-corpus under BSD, the
// others have none at the top of their repositories.
func heldOut() (list []Source) {
	for label, sources := range map[string]string{
		Reasoning: "PlanBench=karthikv792/LLMs-Planning|PutnamBench=trishullab/PutnamBench|ConTRoL=csitfun/ConTRoL-dataset|" +
			"StepGame=ZhengxiangShi/StepGame|CLadder=causalNLP/cladder|TRAM=EternityYW/TRAM-Benchmark|" +
			"Tengu-Bench=lightblue-tech/japanese_llm_eval|CG-Eval=Felixgithub2017/CG-Eval",
		Code: "BioCoder=gersteinlab/BioCoder|LeetCode=deepseek-ai/DeepSeek-Coder|ReCode=amazon-science/recode|" +
			"PandasEval and NumpyEval=microsoft/PyCodeGPT|LLM-Prompt-Library=abilzerian/LLM-Prompt-Library",
		Extraction: "GraphRAG=microsoft/graphrag|Graphiti=getzep/graphiti|Mem0=mem0ai/mem0|knowledge_graph=rahulnyk/knowledge_graph|" +
			"LLM-Sentiment=DAMO-NLP-SG/LLM-Sentiment|Tengu-Bench=lightblue-tech/japanese_llm_eval",
		General: "Tengu-Bench=lightblue-tech/japanese_llm_eval|CG-Eval=Felixgithub2017/CG-Eval|CharacterEval=morecry/CharacterEval|" +
			"chatterbot-corpus=gunthercox/chatterbot-corpus|MedQuAD=abachaa/MedQuAD|GPTs=linexjlin/GPTs|" +
			"LLM-Prompt-Library=abilzerian/LLM-Prompt-Library",
	} {
		for source := range strings.SplitSeq(sources, "|") {
			name, repository, _ := strings.Cut(source, "=")
			list = append(list, Source{Name: name, Repository: repository, Path: "prompts.json", Text: []string{"prompt"},
				Category: "task", Labels: map[string]string{label: label}, Most: 40, Held: true})
		}
	}
	slices.SortFunc(list, func(a, b Source) int { return strings.Compare(a.Name+sourceLabel(a), b.Name+sourceLabel(b)) })
	return list
}

// sourceLabel returns the label of a source whose prompts have one.
func sourceLabel(s Source) string { return strings.Join(slices.Collect(maps.Values(s.Labels)), "") }
