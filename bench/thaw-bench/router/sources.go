package router

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The labels, which are the names of the rules too.
const (
	Code       = "code"
	Extraction = "extraction"
	Reasoning  = "reasoning"
	General    = "general"
)

// Labels in the order of the rules.
var Labels = []string{Extraction, Code, Reasoning, General}

// Source is a file of a public repository, in a folder of checkouts: OWNER/NAME/PATH.
type Source struct {
	Name       string
	Repository string
	Path       string            // a pattern; "texts:FILE" is a file of the folder of texts
	List       string            // member that holds the list; "": lines, or the top level
	Before     string            // member of the document that stands before each text; "": none
	Text       []string          // members that make the text, such as turns.0
	Label      string            // of all, or by Category
	Category   string            // member that names the category
	Labels     map[string]string // of categories; others are left out
	Held       bool              // nothing is fitted on it; set by heldOut, which says what was changed for it
	Most       int               // prompts that are used, spread evenly; 0: 200
	Skip       []string          // parts of file names that are left out
}

var bench = map[string]string{
	"coding": Code, "math": Reasoning, "reasoning": Reasoning, "fermi": Reasoning, "extraction": Extraction,
	"writing": General, "roleplay": General, "generic": General, "knowledge": General, "common-sense": General, "counterfactual": General, "humanities": General,
}

// Sources are the labelled prompts. Word problems and logic puzzles are reasoning; requests
// to an assistant, questions to a bank, writing and look-ups are general.
var Sources = slices.Concat(seen, seenThird(), seenFourth(), seenFifth(), seenSixth(), seenSeventh(), seenEighth(), seenNinth(),
	neverHeld(), readBefore(), heldOut())

var seen = []Source{
	{Name: "gsm8k (train)", Repository: "openai/grade-school-math", Path: "texts:gsm8k-train-1000.jsonl", Text: []string{"text"}, Label: Reasoning},
	{Name: "AQuA", Repository: "kojima-takeshi188/zero_shot_cot", Path: "dataset/AQuA/test.json", Text: []string{"question", "options"}, Label: Reasoning},
	{Name: "LogiQA", Repository: "lgw863/LogiQA-dataset", Path: "Test.txt", Label: Reasoning},
	{Name: "coin flips", Repository: "kojima-takeshi188/zero_shot_cot", Path: "dataset/coin_flip/coin_flip.json", List: "examples", Text: []string{"question"}, Label: Reasoning, Most: 100},
	{Name: "MultiArith", Repository: "kojima-takeshi188/zero_shot_cot", Path: "dataset/MultiArith/MultiArith.json", Text: []string{"sQuestion"}, Label: Reasoning, Most: 100},
	{Name: "CLINC150 (train)", Repository: "clinc/oos-eval", Path: "texts:clinc-train.jsonl", Text: []string{"text"}, Label: General, Most: 600},
	{Name: "self-instruct seeds", Repository: "yizhongw/self-instruct", Path: "data/seed_tasks.jsonl", Text: []string{"instruction", "instances.0.input"}, Label: General},
	{Name: "Vicuna bench", Repository: "lm-sys/FastChat", Path: "fastchat/llm_judge/data/vicuna_bench/question.jsonl", Text: []string{"turns.0"}, Category: "category", Labels: bench},
	{Name: "WizardLM test set", Repository: "nlpxucan/WizardLM", Path: "WizardLM/data/WizardLM_testset.jsonl", Text: []string{"Instruction"}, Category: "Skill", Labels: map[string]string{
		"Math": Reasoning, "Reasoning": Reasoning, "Code Generation": Code, "Code Debug": Code, "Writting": General, "Common-Sense": General, "Roleplay": General, "Biology": General,
		"Technology": General, "Ethics": General, "Sport": General, "Law": General, "Medicine": General,
		"Literature": General, "Entertainment": General, "Art": General, "Music": General,
		"History": General, "Philosophy": General, "Multilingual": General, "Economy": General}},
	{Name: "MBPP+", Repository: "nlpxucan/WizardLM", Path: "WizardCoder/data/mbppplus.json", Label: Code},
	{Name: "DeepKE events", Repository: "zjunlp/DeepKE", Path: "example/llm/InstructKGC/data/EE/test.json", Text: []string{"instruction"}, Label: Extraction},

	{Name: "BIG-Bench Hard", Repository: "suzgunmirac/BIG-Bench-Hard", Path: "bbh/*.json", List: "examples", Text: []string{"input"}, Label: Reasoning, Most: 400,
		Skip: []string{"disambiguation", "hyperbaton", "movie", "ruin_names", "salient", "snarks", "sports", "word_sorting", "causal"}},
	{Name: "SVAMP", Repository: "kojima-takeshi188/zero_shot_cot", Path: "dataset/SVAMP/SVAMP.json", Text: []string{"Body", "Question"}, Label: Reasoning},
	{Name: "MT bench", Repository: "lm-sys/FastChat", Path: "fastchat/llm_judge/data/mt_bench/question.jsonl", Text: []string{"turns.0"}, Category: "category", Labels: bench},
	{Name: "Banking77", Repository: "PolyAI-LDN/task-specific-datasets", Path: "texts:banking-train.jsonl", Text: []string{"text"}, Label: General},
	{Name: "self-instruct, user-oriented", Repository: "yizhongw/self-instruct", Path: "human_eval/user_oriented_instructions.jsonl", Text: []string{"instruction", "instances.0.input"}, Category: "motivation_app", Labels: userOriented},
	{Name: "HumanEval", Repository: "amazon-science/mxeval", Path: "data/multilingual_humaneval/HumanEval*.jsonl", Text: []string{"prompt"}, Label: Code},
	{Name: "MBPP in Java and Go", Repository: "amazon-science/mxeval", Path: "data/mbxp/mb[gj]p_*.jsonl", Text: []string{"prompt"}, Label: Code},
	{Name: "DeepKE entities", Repository: "zjunlp/DeepKE", Path: "example/llm/InstructKGC/data/NER/test.json", Text: []string{"instruction"}, Label: Extraction},

	// Held out before, until their prompts were read. Their licences: Auto-J has none in its repository, CodeAlpaca's data are
	// CC BY-NC 4.0, NQ-open is CC BY-SA 3.0, XSTest CC BY 4.0, the others MIT.
	{Name: "Auto-J, requests by scenario", Repository: "GAIR-NLP/auto-j", Path: "data/test/testdata_pairwise.jsonl", Text: []string{"prompt"}, Category: "scenario", Labels: scenarios, Most: 2000},
	{Name: "CodeAlpaca", Repository: "sahil280114/codealpaca", Path: "data/code_alpaca_2k.json", Text: []string{"instruction", "input"}, Label: Code},
	{Name: "AGIEval, LSAT, games", Repository: "microsoft/AGIEval", Path: "data/v1/lsat-ar.jsonl", Text: []string{"passage", "question", "options"}, Label: Reasoning},
	{Name: "AGIEval, LSAT, arguments", Repository: "microsoft/AGIEval", Path: "data/v1/lsat-lr.jsonl", Text: []string{"passage", "question", "options"}, Label: Reasoning},
	{Name: "AGIEval, SAT, mathematics", Repository: "microsoft/AGIEval", Path: "data/v1/sat-math.jsonl", Text: []string{"passage", "question", "options"}, Label: Reasoning},
	{Name: "AGIEval, MATH", Repository: "microsoft/AGIEval", Path: "data/v1/math.jsonl", Text: []string{"passage", "question", "options"}, Label: Reasoning},
	{Name: "TheoremQA", Repository: "wenhuchen/TheoremQA", Path: "theoremqa_test.json", Text: []string{"Question"}, Label: Reasoning},
	{Name: "NQ-open", Repository: "google-research-datasets/natural-questions", Path: "nq_open/NQ-open.dev.jsonl", Text: []string{"question"}, Label: General},
	{Name: "XSTest", Repository: "paul-rottger/exaggerated-safety", Path: "xstest_prompts.csv", Text: []string{"prompt"}, Label: General},
	{Name: "IFEval", Repository: "microsoft/llm-steer-instruct", Path: "data/format/ifeval_single_instr_format.jsonl", Text: []string{"prompt"}, Category: "instruction_id_list.0", Labels: map[string]string{"detectable_format:json_format": Extraction}},

	// Held out after those, until theirs were read too. Their licences: FollowBench, PAL, BiGGen
	// Bench, AlpacaEval and TruthfulQA are under Apache 2.0, ODEX under CC BY-SA 4.0, ClassEval and SciBench under MIT; the
	// other repositories have none.
	{Name: "On-Demand-IE", Repository: "yzjiao/On-Demand-IE", Path: "dataset/test_data.json", Text: []string{"instruction", "text"}, Label: Extraction},
	{Name: "FollowBench, CoNLL and WikiEvents", Repository: "YJiangcm/FollowBench", Path: "data/content_constraints.json", Text: []string{"instruction"}, Category: "source", Labels: map[string]string{"CONLL2003": Extraction, "WIKIEVENTS": Extraction}},
	{Name: "StackEval", Repository: "ProsusAI/stack-eval", Path: "data/stack-eval.jsonl", Text: []string{"question"}, Label: Code},
	{Name: "ODEX", Repository: "zorazrw/odex", Path: "data/en_test.jsonl", Text: []string{"intent"}, Label: Code},
	{Name: "ClassEval", Repository: "FudanSELab/ClassEval", Path: "data/ClassEval_data.json", Text: []string{"skeleton"}, Label: Code},
	{Name: "ASDiv", Repository: "reasoning-machines/pal", Path: "datasets/asdiv.jsonl", Text: []string{"input"}, Label: Reasoning},
	{Name: "ReClor", Repository: "csitfun/LogiEval", Path: "Data/reclor.jsonl", Text: []string{"input.1.content"}, Label: Reasoning},
	{Name: "FraCaS", Repository: "csitfun/LogiEval", Path: "Data/fracas.jsonl", Text: []string{"input.1.content"}, Label: Reasoning},
	{Name: "SciBench", Repository: "mandyyyyii/scibench", Path: "dataset/original/*.json", Text: []string{"problem_text"}, Label: Reasoning},
	{Name: "BiGGen Bench", Repository: "prometheus-eval/prometheus-eval", Path: "BiGGen-Bench/sample_responses.json", Text: []string{"input"}, Category: "task", Labels: bigGen},
	{Name: "AlpacaEval, helpful", Repository: "tatsu-lab/alpaca_eval", Path: "results/GPO-Llama-3-8B-Instruct-GPM-2B/model_outputs.json", Text: []string{"instruction"}, Category: "dataset", Labels: map[string]string{"helpful_base": General}},
	{Name: "FollowBench, style", Repository: "YJiangcm/FollowBench", Path: "data/style_constraints.json", Text: []string{"instruction"}, Label: General},
	{Name: "TruthfulQA", Repository: "frankxwang/probing-experiments", Path: "TruthfulQA.csv", Text: []string{"Question"}, Label: General},
	{Name: "EQ-Bench, creative writing", Repository: "EQ-bench/creative-writing-bench", Path: "data/creative_writing_prompts_v3.json", Text: []string{"writing_prompt"}, Label: General},
	{Name: "WebQuestions", Repository: "brmson/dataset-factoid-webquestions", Path: "main/test.json", Text: []string{"qText"}, Label: General},

	// Held out after those, until the first figures of theirs were read. Their licences: Text2KGBench, LLM-Adapters,
	// Koala's test set and DangerousQA are under Apache 2.0, UniversalNER and HumanEvalFix under MIT, FOLIO under CC BY-SA
	// 4.0, NLU-Evaluation-Data under CC BY 4.0, CyberSecEval under the Llama 3.2 community licence.
	{Name: "Text2KGBench, Wikidata", Repository: "cenguix/Text2KGBench", Path: "data/wikidata_tekgen/baselines/prompts/ont_*_prompts.jsonl", Text: []string{"prompt"}, Label: Extraction, Most: 100},
	{Name: "Text2KGBench, DBpedia", Repository: "cenguix/Text2KGBench", Path: "data/dbpedia_webnlg/baselines/prompts/ont_*_prompts.jsonl", Text: []string{"prompt"}, Label: Extraction, Most: 100},
	{Name: "UniversalNER, CrossNER, AI", Repository: "universal-ner/universal-ner", Path: "src/eval/test_data/CrossNER_AI.json", Text: []string{"conversations.0.value", "conversations.2.value"}, Label: Extraction, Most: 40},
	{Name: "UniversalNER, CrossNER, literature", Repository: "universal-ner/universal-ner", Path: "src/eval/test_data/CrossNER_literature.json", Text: []string{"conversations.0.value", "conversations.2.value"}, Label: Extraction, Most: 40},
	{Name: "UniversalNER, CrossNER, music", Repository: "universal-ner/universal-ner", Path: "src/eval/test_data/CrossNER_music.json", Text: []string{"conversations.0.value", "conversations.2.value"}, Label: Extraction, Most: 40},
	{Name: "UniversalNER, CrossNER, politics", Repository: "universal-ner/universal-ner", Path: "src/eval/test_data/CrossNER_politics.json", Text: []string{"conversations.0.value", "conversations.2.value"}, Label: Extraction, Most: 40},
	{Name: "UniversalNER, CrossNER, science", Repository: "universal-ner/universal-ner", Path: "src/eval/test_data/CrossNER_science.json", Text: []string{"conversations.0.value", "conversations.2.value"}, Label: Extraction, Most: 40},
	{Name: "CyberSecEval, instructions", Repository: "meta-llama/PurpleLlama", Path: "CybersecurityBenchmarks/datasets/instruct/instruct.json", Text: []string{"test_case_prompt"}, Label: Code},
	{Name: "HumanEvalFix, C++", Repository: "bigcode-project/octopack", Path: "evaluation/create/humaneval-x/data/cpp/data/humanevalpack.jsonl", Text: []string{"instruction"}, Label: Code, Most: 30},
	{Name: "HumanEvalFix, Go", Repository: "bigcode-project/octopack", Path: "evaluation/create/humaneval-x/data/go/data/humanevalpack.jsonl", Text: []string{"instruction"}, Label: Code, Most: 30},
	{Name: "HumanEvalFix, Java", Repository: "bigcode-project/octopack", Path: "evaluation/create/humaneval-x/data/java/data/humanevalpack.jsonl", Text: []string{"instruction"}, Label: Code, Most: 30},
	{Name: "HumanEvalFix, JavaScript", Repository: "bigcode-project/octopack", Path: "evaluation/create/humaneval-x/data/js/data/humanevalpack.jsonl", Text: []string{"instruction"}, Label: Code, Most: 30},
	{Name: "HumanEvalFix, Python", Repository: "bigcode-project/octopack", Path: "evaluation/create/humaneval-x/data/python/data/humanevalpack.jsonl", Text: []string{"instruction"}, Label: Code, Most: 30},
	{Name: "HumanEvalFix, Rust", Repository: "bigcode-project/octopack", Path: "evaluation/create/humaneval-x/data/rust/data/humanevalpack.jsonl", Text: []string{"instruction"}, Label: Code, Most: 30},
	{Name: "AddSub", Repository: "AGI-Edgerunners/LLM-Adapters", Path: "dataset/AddSub/test.json", Text: []string{"instruction"}, Label: Reasoning},
	{Name: "SingleEq", Repository: "AGI-Edgerunners/LLM-Adapters", Path: "dataset/SingleEq/test.json", Text: []string{"instruction"}, Label: Reasoning},
	{Name: "ARC, challenge", Repository: "AGI-Edgerunners/LLM-Adapters", Path: "dataset/ARC-Challenge/test.json", Text: []string{"instruction"}, Label: Reasoning},
	{Name: "FOLIO (train)", Repository: "Yale-LILY/FOLIO", Path: "data/v0.0/folio-train.jsonl", Text: []string{"premises", "conclusion"}, Label: Reasoning, Most: 100},
	{Name: "FOLIO (validation)", Repository: "Yale-LILY/FOLIO", Path: "data/v0.0/folio-validation.jsonl", Text: []string{"premises", "conclusion"}, Label: Reasoning, Most: 100},
	{Name: "Koala's test set", Repository: "arnav-gudibande/koala-test-set", Path: "koala_test_set.jsonl", Text: []string{"prompt"}, Label: General},
	{Name: "NLU-Evaluation-Data", Repository: "xliuhw/NLU-Evaluation-Data", Path: "CrossValidation/autoGeneFromRealAnno/autoGene_2018_03_22-13_01_25_169/CrossValidation/KFold_1/testset/annotated/*/*.json", Text: []string{"text"}, Label: General, List: "test_data_annotation"},
	{Name: "DangerousQA", Repository: "declare-lab/red-instruct", Path: "harmful_questions/dangerousqa.json", Label: General},
}

// neverHeld returns sources that were read before they were added, for fitting. Their repositories name no licence.
func neverHeld() []Source {
	return []Source{
		{Name: "pCLUE", Repository: "CLUEbenchmark/pCLUE", Path: "datasets/pCLUE_train_9.json", Text: []string{"input"}, Category: "type",
			Labels: map[string]string{"nli": Reasoning, "generate": General}},
		{Name: "LogicKor", Repository: "instructkr/LogicKor", Path: "questions.jsonl", Text: []string{"questions.0"}, Category: "category",
			Labels: map[string]string{"추론(Reasoning)": Reasoning, "수학(Math)": Reasoning, "글쓰기(Writing)": General, "코딩(Coding)": Code}},
	}
}

// seenThird returns the third hold-out, which was held out until what went to a wrong rule was read. They were chosen by
// the names of their files and of the categories that their authors gave them, before any of their prompts was read:
// all tasks of a category, of each the prompts that Load spreads over the file, of Natural Instructions those in
// English; Arena-Hard's are in many languages. Tasks of classification and of questions about a text have none of the
// labels and are left out. Their licences: Arena-Hard, MT-Bench-101, FLAN and Natural Instructions, which FLAN and
// SAPT have their tasks from, are under Apache 2.0, GSM-Symbolic under a licence of Apple's; ADELIE, SAPT and
// SecurityEval have none in their repositories.
func seenThird() (list []Source) {
	add := func(s Source) { list = append(list, s) }
	for subcategory, label := range map[string]string{"coding": Code, "math": Reasoning, "creative_writing": General} {
		add(Source{Name: "Arena-Hard 2.0, " + subcategory, Repository: "lmarena/arena-hard-auto", Path: "data/arena-hard-v2.0/question.jsonl", Text: []string{"prompt"},
			Category: "subcategory", Labels: map[string]string{subcategory: label}})
	}
	// Mathematical and general reasoning, rephrasing of content and of form.
	for task, label := range map[string]string{"MR": Reasoning, "GR": Reasoning, "CR": General, "FR": General} {
		add(Source{Name: "MT-Bench-101, " + task, Repository: "mtbench101/mt-bench-101", Path: "data/subjective/mtbench101.jsonl", Text: []string{"history.0.user"},
			Category: "task", Labels: map[string]string{task: label}})
	}
	// niv2.json is NATINST_META_DATA of constants_niv2.py as JSON: of each task that flan_collection_info.csv names, if it is in
	// English, its definition, its example's input, and its Generic Task Category.
	for label, categories := range map[string][]string{
		Extraction: {"Information Extraction", "Named Entity Recognition", "Keyword Tagging", "Overlap Extraction"},
		Code:       {"Text to Code", "Code to Text"},
		Reasoning:  {"Mathematics", "Temporal Reasoning"},
		General: {"Story Composition", "Title Generation", "Summarization", "Poem Generation", "Dialogue Generation",
			"Paraphrasing", "Text Simplification", "Style Transfer", "Question Rewriting", "Question Generation", "Explanation",
			"Sentence Composition", "Sentence Perturbation", "Sentence Expansion", "Sentence Compression",
			"Data to Text", "Rhyme Generation", "Grammar Error Correction"},
	} {
		for _, category := range categories {
			add(Source{Name: "Natural Instructions, " + category, Repository: "google-research/FLAN", Path: "flan/v2/niv2.json", Text: []string{"definition", "input"},
				Category: "category", Labels: map[string]string{category: label}})
		}
	}
	for task, label := range map[string]string{
		"task181_outcome_extraction": Extraction, "task1510_evalution_relation_extraction": Extraction, "task748_glucose_reverse_cause_event_detection": Extraction,
		"task1290_xsum_summarization": General, "task1572_samsum_summary": General, "task511_reddit_tifu_long_text_summarization": General,
		"task1590_diplomacy_text_generation": General, "task1729_personachat_generate_next": General, "task639_multi_woz_user_utterance_generation": General,
	} {
		add(Source{Name: "SAPT, " + task, Repository: "circle-hit/SAPT", Path: "CL_Benchmark/SuperNI/" + task + "/test.json",
			List: "Instances", Before: "Definition.0", Text: []string{"input"}, Label: label, Most: 20})
	}
	add(Source{Name: "ADELIE, Few-NERD", Repository: "THU-KEG/ADELIE", Path: "unified_data/test_format/zeroshot/few-nerd-supervised.jsonl",
		Text: []string{"messages.0.content"}, Label: Extraction, Most: 60})
	add(Source{Name: "SecurityEval", Repository: "s2e-lab/SecurityEval", Path: "dataset.jsonl",
		Text: []string{"Prompt"}, Label: Code})
	add(Source{Name: "GSM-Symbolic, P2", Repository: "apple/ml-gsm-symbolic", Path: "generated_data/GSM_p2.jsonl",
		Text: []string{"question"}, Label: Reasoning, Most: 100})
	slices.SortFunc(list, func(a, b Source) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// seenFourth returns the fourth hold-out, which was held out until the rules that its sources went to were read; none of their
// texts was, but because of these figures the words of India's scripts are read whole since then. They were chosen by the names
// of their files and of the tasks and categories that their authors gave them, before any of their prompts was read, where the
// task is the label: requests to search for code count, questions about a text, classification and commands for a shell that a
// program runs do not. Of each, Load spreads the prompts over the file. About half of the requests for parts of a text are in
// Chinese; the word problems of MGSM are in ten languages. Two files were put together of their templates and of texts of
// CrossNER, five or four of each template: instructions.json of the zero-shot instructions RE, NER, EE, ES, EP and EEA of
// InstructUIE's instruction_config.json, prompts.json of the templates NER_* of LLM-IE's benchmark that have a place for a text.
// Their licences: InstructUIE, HelloBench and Logic-LLM are under MIT, MGSM is under CC BY-SA 4.0, CoSQA under C-UDA; the other
// repositories have none.
func seenFourth() (list []Source) {
	add := func(s Source) { list = append(list, s) }
	add(Source{Name: "InstructUIE, instructions", Repository: "BeyonderXX/InstructUIE", Path: "instructions.json", Text: []string{"instruction", "text"}, Label: Extraction})
	add(Source{Name: "LLM-IE, templates", Repository: "daviden1013/LLM-IE_Benchmark", Path: "prompts.json", Text: []string{"prompt"}, Label: Extraction})
	for file, label := range map[string]string{"extraction": Extraction, "keywords_extraction": Extraction, "Summarization": General} {
		add(Source{Name: "CELLO, " + file, Repository: "Abbey4799/CELLO", Path: "data/" + file + ".json", Text: []string{"Instruction"}, Label: label, Most: 50})
	}
	for _, task := range []string{"ner", "spo_generation", "event_extraction"} {
		add(Source{Name: "PromptCBLUE, " + task, Repository: "michael-wzhu/PromptCBLUE", Path: "datasets/PromptCBLUE/toy_examples/*.json", Text: []string{"input"},
			Category: "task_type", Labels: map[string]string{task: Extraction}, Most: 10, Skip: []string{"structured", "results"}})
	}
	for _, file := range []string{"java_en", "java_zh", "python_en", "python_zh"} {
		add(Source{Name: "NaturalCodeBench, " + file, Repository: "THUDM/NaturalCodeBench", Path: "problems/ncb_" + file + ".jsonl", Text: []string{"prompt"}, Label: Code, Most: 40})
	}
	add(Source{Name: "CoSQA", Repository: "Jun-jie-Huang/CoCLR", Path: "data/search/cosqa-retrieval-test-500.json", Text: []string{"doc"}, Label: Code, Most: 100})
	for _, language := range []string{"bn", "de", "es", "fr", "ja", "ru", "sw", "te", "th", "zh"} {
		add(Source{Name: "MGSM, " + language, Repository: "google-research/url-nlp", Path: "mgsm/mgsm_" + language + ".tsv",
			Label: Reasoning, Most: 15})
	}
	for _, change := range []string{"numerical substitution", "digit expansion", "integer-decimal-fraction conversion", "adding operation",
		"reversing operation", "problem understanding", "critical thinking", "distraction insertion"} {
		add(Source{Name: "GSM-Plus, " + change, Repository: "qtli/GSM-Plus", Path: "dataset/gsmplus_testmini.jsonl", Text: []string{"question"},
			Category: "perturbation_type", Labels: map[string]string{change: Reasoning}, Most: 12})
	}
	for _, set := range []string{"ProofWriter", "ProntoQA"} {
		add(Source{Name: set, Repository: "teacherpeterpan/Logic-LLM", Path: "data/" + set + "/dev.json", Text: []string{"context", "question", "options"}, Label: Reasoning, Most: 40})
	}
	for file, categories := range map[string]string{
		"open_ended_qa":             "Science Tech write food movie Sport health travel music book",
		"heuristic_text_generation": "keyword_writing roleplaying_writing screenplay_writing story_writing argumentative_writing",
		"chat": "creative_write guide_generation academic_write script_write character_creation idea_generation report_write " +
			"rewrite continue_write curriculum_development",
	} {
		for category := range strings.FieldsSeq(categories) {
			add(Source{Name: "HelloBench, " + file + ", " + category, Repository: "Quehry/HelloBench", Path: "data/main_data/" + file + ".jsonl", Text: []string{"instruction"},
				Category: "category", Labels: map[string]string{category: General}, Most: 8})
		}
	}
	slices.SortFunc(list, func(a, b Source) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// seenFifth returns the fifth hold-out, which was held out until what went to a wrong rule was read.
// They were chosen by the names of their files and
// members and of the tasks and categories that their authors gave them, before any of their prompts was read, where the task
// is the label; questions about a text and classification are none. Of each, Load spreads the prompts over the file, which
// has them whole; one file was put together: requests.json has the members context and prompts of WikiEvents' test.json,
// one behind the other. BELLE's evaluation set and LawBench are in Chinese, the others in English, WritingBench in both. LawBench's
// tasks are 2-6, entities, 2-7, summaries of opinions, 2-10, trigger words, 3-7, damages in figures, and 3-8, consultation.
// Their licences: EditEval, TabMWP, MuSR and LogicBench are under MIT, Instructdial, LawBench, BELLE,
// Qiskit HumanEval, LongWriter, WritingBench and BPO under Apache 2.0, ParEval under one of its own, the others have none.
func seenFifth() (list []Source) {
	add := func(s Source) { list = append(list, s) }
	// byCategory adds a source for each of the categories, which are the values of a member.
	byCategory := func(s Source, label, categories string) {
		name := s.Name
		for category := range strings.SplitSeq(categories, "|") {
			s.Name, s.Labels = name+", "+category, map[string]string{category: label}
			add(s)
		}
	}
	fifthExtraction(add)
	fifthCode(add, byCategory)
	fifthReasoning(add, byCategory)
	dolly := Source{Name: "BPO, Dolly", Repository: "thu-coai/BPO", Path: "data/testset/dolly_eval.json",
		Text: []string{"instruction", "context"}, Category: "category", Most: 30}
	byCategory(dolly, Extraction, "information_extraction")
	byCategory(dolly, General, "open_qa|general_qa|brainstorming|creative_writing|summarization")
	dialogue := Source{Name: "Instructdial", Repository: "prakharguptaz/Instructdial", Path: "scripts/text2textfiles/sample_text2text.json",
		Text: []string{"prompt"}, Category: "task", Most: 8}
	byCategory(dialogue, General, "response_generation|summarization|persona_grounded_generation|advice_generation|"+
		"question_generation|persuasion_generation|recovery_generation|edit_generation")
	dialogue.Most = 40
	byCategory(dialogue, Extraction, "slot_value_generation")
	belle := Source{Name: "BELLE", Repository: "LianjiaTech/BELLE", Path: "eval/eval_set.json",
		Text: []string{"question"}, Category: "class", Most: 20}
	byCategory(belle, Extraction, "extract")
	byCategory(belle, Code, "code")
	byCategory(belle, Reasoning, "math")
	belle.Most = 10
	byCategory(belle, General, "open qa|brainstorming|rewrite|generation|summarization")
	byCategory(Source{Name: "LongBench-Write", Repository: "THUDM/LongWriter", Path: "evaluation/longbench_write_en.jsonl",
		Text: []string{"prompt"}, Category: "type", Most: 6}, General, "Literature and Creative Writing|Popular Science|Functional Writing|"+
		"Academic and Monograph|News Report|Community Forum|Education and Training")
	byCategory(Source{Name: "WritingBench, length", Repository: "X-PLUG/WritingBench",
		Path: "benchmark_query/requirement/length/length_subset.jsonl", Text: []string{"query"}, Category: "domain1", Most: 5},
		General, "Literature & Arts|Politics & Law|Advertising & Marketing|Education|"+
			"Academic & Engineering|Finance & Business")
	for task, label := range map[string]string{"2-6": Extraction, "2-10": Extraction, "2-7": General, "3-7": Reasoning, "3-8": General} {
		most := 20
		if label == General {
			most = 10
		}
		add(Source{Name: "LawBench, " + task, Repository: "open-compass/LawBench", Path: "data/zero_shot/" + task + ".json",
			Text: []string{"instruction", "question"}, Label: label, Most: most})
	}
	slices.SortFunc(list, func(a, b Source) int { return strings.Compare(a.Name, b.Name) })
	return list
}

func fifthExtraction(add func(Source)) {
	add(Source{Name: "Self-Improve NER, WikiGold", Repository: "Emma1066/Self-Improve-Zero-Shot-NER",
		Path: "prompts/self_consistent_annotate/wikigold/self_annotation/train_shuffle_42/zs/train_shuffle_42_prompts__0.json",
		Text: []string{"prompt"}, Label: Extraction, Most: 40})
	add(Source{Name: "LLMs for CSS, WikiEvents", Repository: "SALT-NLP/LLMs_for_CSS", Path: "css_data/wikievents/requests.json",
		Text: []string{"text"}, Label: Extraction, Most: 40})
}

func fifthCode(add func(Source), byCategory func(s Source, label, categories string)) {
	add(Source{Name: "EditEval", Repository: "qishenghu/CodeInstruct", Path: "edit_eval/edit_eval.jsonl",
		Text: []string{"instruction", "input"}, Label: Code, Most: 50})
	byCategory(Source{Name: "LLMSecEval", Repository: "tuhh-softsec/LLMSecEval", Path: "Dataset/LLMSecEval-Prompts_dataset.json",
		Text: []string{"Manually-fixed NL Prompt"}, Category: "Language", Most: 30}, Code, "C|Python")
	byCategory(Source{Name: "ParEval", Repository: "parallelcodefoundry/ParEval", Path: "prompts/generation-prompts.json",
		Text: []string{"prompt"}, Category: "problem_type", Most: 5}, Code,
		"geometry|graph|reduce|scan|transform|sparse_la|histogram|search|fft|dense_la|sort|stencil")
	byCategory(Source{Name: "Qiskit HumanEval", Repository: "qiskit-community/qiskit-human-eval",
		Path: "dataset/dataset_qiskit_test_human_eval.json", Text: []string{"prompt"}, Category: "difficulty_scale", Most: 25},
		Code, "basic|intermediate|difficult")
}

func fifthReasoning(add func(Source), byCategory func(s Source, label, categories string)) {
	for logic, axioms := range map[string]string{
		"propositional_logic": "bidirectional_dilemma commutation constructive_dilemma destructive_dilemma disjunctive_syllogism " +
			"hypothetical_syllogism material_implication modus_tollens",
		"first_order_logic": "bidirectional_dilemma constructive_dilemma destructive_dilemma disjunctive_syllogism " +
			"existential_generalization hypothetical_syllogism modus_ponens modus_tollens universal_instantiation",
		"nm_logic": "default_reasoning_default default_reasoning_irr default_reasoning_open default_reasoning_several " +
			"reasoning_about_exceptions_1 reasoning_about_exceptions_2 reasoning_about_exceptions_3 reasoning_about_priority",
	} {
		for axiom := range strings.FieldsSeq(axioms) {
			add(Source{Name: "LogicBench, " + logic + ", " + axiom, Repository: "Mihir3009/LogicBench",
				Path: "data/LogicBench(Eval)/BQA/" + logic + "/" + axiom + "/data_instances.json", List: "samples",
				Text: []string{"context", "qa_pairs.0.question"}, Label: Reasoning, Most: 3})
		}
	}
	byCategory(Source{Name: "TabMWP", Repository: "lupantech/PromptPG", Path: "data/tabmwp/problems_test1k.json",
		Text: []string{"table_title", "table", "question", "choices"}, Category: "ques_type", Most: 30}, Reasoning, "free_text|multi_choice")
	for _, task := range []string{"murder_mystery", "object_placements", "team_allocation"} {
		add(Source{Name: "MuSR, " + task, Repository: "Zayne-sprague/MuSR", Path: "viewer/small_datasets/small_" + task + ".json",
			Text: []string{"context", "questions.0.question", "questions.0.choices"}, Label: Reasoning, Most: 5})
	}
}

// bigGen are the tasks of BiGGen Bench whose label their names leave no doubt of.
var bigGen = map[string]string{
	"abductive": Reasoning, "competition_mwp": Reasoning, "deductive": Reasoning, "first_order_logic": Reasoning, "high_school_mwp": Reasoning,
	"inductive": Reasoning, "math_proof": Reasoning, "table_reason": Reasoning, "code_revision": Code, "coding_for_math": Code,
	"writing_a_speech": General, "essay_revision": General, "education_content_creation": General, "poem_writing": General,
}

// scenarios are those of Auto-J; a scenario that is none of the labels is left out.
var scenarios = func() map[string]string {
	m := map[string]string{}
	for label, list := range map[string]string{
		Code:       "code_generation code_correction_rewriting code_simplification code_to_code_translation explaining_code",
		Extraction: "information_extraction keywords_extraction",
		Reasoning:  "math_reasoning solving_exam_question_with_math",
		General: `asking_how_to_question brainstorming chitchat counterfactual creative_writing explaining_general functional_writing instructional_rewriting language_polishing
			note_summarization open_question paraphrasing planning post_summarization question_generation recommendation roleplay seeking_advice text_correction text_simplification
			text_summarization text_to_text_translation title_generation value_judgement verifying_fact writing_advertisement writing_biography writing_blog_post writing_cooking_recipe
			writing_email writing_job_application writing_legal_document writing_marketing_materials writing_news_article writing_personal_essay writing_presentation_script
			writing_product_description writing_scientific_paper writing_social_media_post writing_song_lyrics writing_technical_document`,
	} {
		for scenario := range strings.FieldsSeq(list) {
			m[scenario] = label
		}
	}
	return m
}()

var userOriented = func() map[string]string {
	m := map[string]string{"StackOverflow": Code, "Leetcode": Code, "GeeksforGeeks": Code, "Github": Code, "w3schools": Code}
	for _, app := range []string{"Grammarly", "merriam-webster.com", "Gmail", "Netflix", "Amazon", "IMDB", "Tasty", "Twitter", "Spotify", "tripadvisor.com", "Wikipedia", "Messenger", "Google Search",
		"LinkedIn", "Indeed", "Coursera", "instructables", "Goodreads", "Instagram", "YouTube", "Yelp", "Doulingo", "Reddit", "Blogger", "National Geographic", "Quora", "Redfin", "Google Docs", "Weather", "CNN News", "Workout"} {
		m[app] = General
	}
	return m
}()

// Prompt is one labelled text.
type Prompt struct {
	Source *Source
	Text   string
	Label  string
}

// Load reads the sources from the folder of checkouts and the folder of texts. It lists
// those that are not there.
func Load(checkouts, texts string) (prompts []Prompt, missing []string, err error) {
	for i := range Sources {
		s := &Sources[i]
		pattern := filepath.Join(checkouts, s.Repository, s.Path)
		if name, ok := strings.CutPrefix(s.Path, "texts:"); ok {
			pattern = filepath.Join(texts, name)
		}
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, nil, err
		}
		var list []Prompt
		for _, file := range files {
			if slices.ContainsFunc(s.Skip, func(part string) bool { return strings.Contains(file, part) }) {
				continue
			}
			raw, err := os.ReadFile(file)
			if err != nil {
				return nil, nil, err
			}
			found, err := s.parse(raw)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", file, err)
			}
			list = append(list, found...)
		}
		if len(list) == 0 {
			missing = append(missing, s.Name)
		}
		most := s.Most
		if most == 0 {
			most = 200
		}
		for k := range min(most, len(list)) {
			prompts = append(prompts, list[k*len(list)/min(most, len(list))])
		}
	}
	return prompts, missing, nil
}

// parseText reads a table with a text in the first column, or LogiQA's blocks of eight lines.
func (s *Source) parseText(raw string) (list []Prompt) {
	if strings.HasSuffix(s.Path, ".tsv") {
		for line := range strings.Lines(raw) {
			if text, _, ok := strings.Cut(line, "\t"); ok {
				list = append(list, Prompt{s, text, s.Label})
			}
		}
		return list
	}
	for block := range strings.SplitSeq(raw, "\n\n") {
		if lines := strings.Split(strings.TrimSpace(block), "\n"); len(lines) > 3 {
			list = append(list, Prompt{s, strings.Join(lines[1:], "\n"), s.Label})
		}
	}
	return list
}

// parse reads one file: lines of JSON, one document, a table, or what parseText reads.
func (s *Source) parse(raw []byte) (list []Prompt, err error) {
	switch filepath.Ext(s.Path) {
	case ".tsv", ".txt":
		return s.parseText(string(raw)), nil
	}
	var rows []any
	var document any
	before := ""
	if strings.HasSuffix(s.Path, ".csv") {
		table, err := csv.NewReader(bytes.NewReader(raw)).ReadAll()
		if err != nil {
			return nil, err
		}
		for _, line := range table[min(1, len(table)):] {
			row := map[string]any{}
			for i, value := range line {
				row[table[0][i]] = value
			}
			rows = append(rows, row)
		}
	} else if !strings.HasSuffix(s.Path, ".jsonl") && json.Unmarshal(raw, &document) == nil {
		if s.Before != "" {
			before, _ = member(document, s.Before).(string)
		}
		if s.List != "" {
			document = member(document, s.List)
		}
		switch d := document.(type) {
		case []any:
			rows = d
		case map[string]any: // of texts by their ids
			for _, text := range d {
				rows = append(rows, text)
			}
			slices.SortFunc(rows, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
	} else {
		for line := range bytes.Lines(raw) {
			var row any
			if len(bytes.TrimSpace(line)) == 0 {
				continue
			}
			if err := json.Unmarshal(line, &row); err != nil {
				return nil, err
			}
			rows = append(rows, row)
		}
	}
	for _, row := range rows {
		p := Prompt{Source: s, Label: s.Label, Text: before}
		if text, ok := row.(string); ok {
			p.Text = text
		}
		for _, name := range s.Text {
			switch part := member(row, name).(type) {
			case string:
				p.Text = strings.TrimSpace(p.Text + "\n" + part)
			case []any:
				for _, x := range part {
					p.Text += fmt.Sprint("\n", x)
				}
			}
		}
		if s.Category != "" {
			category, _ := member(row, s.Category).(string)
			p.Label = s.Labels[category]
		}
		if p.Label != "" && p.Text != "" {
			list = append(list, p)
		}
	}
	return list, nil
}

// member returns a member of a document by its path: names, and indexes of arrays.
func member(v any, path string) any {
	for name := range strings.SplitSeq(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[name]
		case []any:
			at, err := strconv.Atoi(name)
			if err != nil || at >= len(x) {
				return nil
			}
			v = x[at]
		default:
			return nil
		}
	}
	return v
}
