package router

import (
	"maps"
	"slices"
	"strings"
)

// heldOut returns the sources that are held out, the tenth hold-out. They were chosen by the names of their repositories, files
// and members and of the tasks and categories that their authors gave them, before any of their prompts was read, where the task
// is the label, and after the last examples were written. Plans, proofs, spatial, causal and temporal deduction, entailment,
// puzzles and mathematics are reasoning; functions to write are code; templates that ask for entities, triples, facts or aspects
// are extraction; roles, writing, advice, chat and translation are general. Each file prompts.json holds the prompts that Load
// spreads over it, with their label as task; the Python templates of graphrag, graphiti, OntoGPT, mem0, kor and LLM-Sentiment
// were filled with sentences of NYT11.
func heldOut() (list []Source) {
	for label, sources := range map[string]string{
		Reasoning: "PlanBench=karthikv792/LLMs-Planning|PutnamBench=trishullab/PutnamBench|ConTRoL=csitfun/ConTRoL-dataset|" +
			"StepGame=ZhengxiangShi/StepGame|CLadder=causalNLP/cladder|TRAM=EternityYW/TRAM-Benchmark|Tengu-Bench=lightblue-tech/japanese_llm_eval",
		Code: "BioCoder=gersteinlab/BioCoder|LeetCode of DeepSeek-Coder=deepseek-ai/DeepSeek-Coder|ReCode=amazon-science/recode|" +
			"PandasEval and NumpyEval=microsoft/PyCodeGPT|LLM prompt library=abilzerian/LLM-Prompt-Library",
		Extraction: "GraphRAG=microsoft/graphrag|Graphiti=getzep/graphiti|OntoGPT=monarch-initiative/ontogpt|Mem0=mem0ai/mem0|Kor=eyurtsev/kor|" +
			"LLM-Sentiment=DAMO-NLP-SG/LLM-Sentiment|Tengu-Bench=lightblue-tech/japanese_llm_eval",
		General: "awesome-chatgpt-prompts=f/awesome-chatgpt-prompts|Tengu-Bench=lightblue-tech/japanese_llm_eval|GPTs=linexjlin/GPTs|" +
			"LLM prompt library=abilzerian/LLM-Prompt-Library|ComplexBench=thu-coai/ComplexBench",
	} {
		for source := range strings.SplitSeq(sources, "|") {
			name, repository, _ := strings.Cut(source, "=")
			list = append(list, Source{Name: name, Repository: repository, Path: "prompts.json", Text: []string{"prompt"},
				Category: "task", Labels: map[string]string{label: label}, Most: 60, Held: true})
		}
	}
	slices.SortFunc(list, func(a, b Source) int { return strings.Compare(a.Name+sourceLabel(a), b.Name+sourceLabel(b)) })
	return list
}

// sourceLabel returns the label of a source whose prompts have one.
func sourceLabel(s Source) string { return strings.Join(slices.Collect(maps.Values(s.Labels)), "") }
