package prompt

import (
	"encoding/binary"
	"maps"
	"slices"
	"strings"
)

type wordClass uint32

// Classes that matter only for the word behind.
const (
	classInto  wordClass = 1 << iota // what stands before JSON where it is the form of the answer
	classUsing                       // what stands before a language: in, using

	firstActive // the lowest of the other classes
)

const (
	classJSON          = firstActive << iota
	classAnswer        // a verb that asks for an answer: return, reply
	classShape         // what stands behind JSON where it is the form of the answer
	classJudge         // asks for a verdict: classify, is, check
	classHarm          // what is forbidden: toxic, hateful
	classPost          // what is judged: comment, message
	classSafe          //
	classUnsafe        //
	classStatement     // begins a line of code
	classLanguage      // a programming language or tool
	classMaybeLanguage // a name of one that means something else too: Java, C
	classProgram       // a word of programming: algorithm, compiler
	classMaybe         // a word of programming that has another meaning too
	classTechnical     // the other meaning is rare in speech: array, encode
	classFirst         // the first word of a term of programming: linked
	classSecond        // its second: list
	classMake          // asks for code where it stands before classObject or classTask: implement, debug
	classConstruct     // likewise, but more often of something else: create, design
	classBuild         // asks for code where it stands beside classLanguage: explain, use
	classObject        // code that is asked for: function, algorithm
	classTask          // likewise, with another meaning: class, program
	classSyntax        // a word of code alone: elif, nullptr
)

const (
	// classPhrase are the classes whose words matter beside others.
	classPhrase = classJSON | classMake | classConstruct | classObject | classTask

	// classSentence are the classes whose words are looked for in one sentence.
	classSentence = classJSON | classAnswer | classJudge | classHarm | classPost | classSafe | classUnsafe |
		classLanguage | classMake | classConstruct | classBuild | classObject | classTask
)

const (
	longestWord = 16
	tableBits   = 10
	bucketBits  = 9
)

var vocabulary = []struct {
	class wordClass
	words string
}{
	{classJSON, "json jsonl csv yaml xml"},
	{classAnswer, "return returns returning reply respond answer output outputs produce give provide format formatted extract generate list present deliver send response result results structured use antworte gib liefere extrahiere ausgabe réponds répondez renvoie extrais retourne responde devuelve extrae rispondi estrai restituisci responda extraia retorne"},
	{classInto, "as in into valid only strict strictly raw pure single compact minified well-formed format formato als im au en como"},
	{classUsing, "in using with"},
	{classShape, "object objects array dictionary dict string strings format schema only output document response structure list with containing having"},
	{classJudge, "classify check judge assess decide determine flag label rate evaluate is are does detect identify moderate violate violates contains contain whether categorize categorise verdict"},
	{classHarm, "toxic toxicity harmful hateful hate offensive abusive nsfw harassment obscene racist sexist policy guidelines inappropriate profanity threatening disallowed violates"},
	{classPost, "content message messages comment comments text post posts conversation prompt response responses review tweet tweets user input sentence utterance speech statement request"},
	{classHarm | classJudge, "moderation moderate moderator"},
	{classSafe, "safe"},
	{classUnsafe, "unsafe"},
	{classStatement, "def class import from return function func public private protected static const let var fn struct enum package interface select insert update delete create if for while elif else try except catch use using namespace template async await void int assert print echo switch module type impl export at diff error panic"},
	{classLanguage, "python javascript typescript golang perl php kotlin scala haskell fortran cobol abap elixir clojure applescript sql mysql postgresql sqlite mongodb bash html css django numpy pytorch tensorflow dockerfile kubernetes kubectl terraform github regex regexp nodejs npm jquery ajax webpack gcc makefile cmake cuda opengl vba vbscript matlab xpath graphql redis nginx linux pytest junit laravel leetcode powershell csharp clang llvm sqlalchemy numba codebase shell matplotlib sklearn selenium oop ansible busybox k8s postgres flutter nixos heredoc dotnet tkinter opencv pyspark elasticsearch grafana systemd awk sed wget ffmpeg verilog solidity torch"},
	{classMaybeLanguage, "c r go java ruby swift rust dart lua julia assembly"},
	{classProgram, "algorithm algorithms api apis snippet subroutine compiler recursion pseudocode"},
	{classMaybe, "function functions code program programs java ruby rust swift react angular spring rails pandas node script scripts methods component loop loops variable schema unit tests test library framework exception bug stack heap queue linked binary dictionary parameter parameters argument arguments command regular expression app server thread threads crash crashes error errors compiles class classes method graph nodes vertex sort sorted ascending descending elements element index characters brackets file files path key keys column columns row rows runtime exceptions interface module modules unity helm kafka spark express"},
	{classMaybe | classTechnical, "flask docker git vue unix latex yaml endpoint recursive variables array arrays string strings integer integers pointer database hashmap tuple boolean parser webpage backend frontend compile subarray matrix query queries constructor iterate programming indices substring whitespace directory duplicates concatenate append parse timestamp datetime unicode ascii encode decode byte bytes dictionaries dict dicts nested newline newlines http ftp url urls epoch parentheses delimited tuples matrices localhost callback async deploy"},
	{classFirst, "linked binary regular hash data while for abstract object web unit"},
	{classSecond, "list lists tree trees expression expressions map maps table tables structure structures loop loops class classes oriented server servers test tests"},
	{classMake, "write implement debug refactor optimize optimise fix rewrite code program coding programming"},
	{classConstruct, "create generate build develop design construct define make"},
	{classBuild, "complete convert translate explain install use using run want need"},
	{classObject, "function functions code algorithm algorithms snippet subroutine api pseudocode"},
	{classTask, "program programs class method query webpage endpoint module struct component"},
	{classSyntax, "elif nullptr println printf sizeof stdin stdout stderr lambda kwargs args isinstance malloc std argv typedef endif ifdef xrange goroutine mutex segfault segmentation traceback nullpointerexception typeerror valueerror keyerror syntaxerror indexerror attributeerror refactoring debugger dataframe subarray substring subsequence nums palindromic dijkstra"},
}

// wordEntry is a word. Stops has 1 in the bits of each language of which it is a stop word,
// so that those of up to maxPacked words are added up at once.
type wordEntry struct {
	hash  uint32
	class wordClass
	stops uint64
}

const (
	bitsPacked = 6
	maxPacked  = 1<<bitsPacked - 1
	manyPacked = (1<<(bitsPacked*languages) - 1) / maxPacked << (bitsPacked - 1) // a language has so many that the next may be too many
)

// hashWord hashes the n bytes at start, at most longestWord, without their case: letters
// of ASCII and of Latin scripts differ from their capitals by one bit.
func hashWord(text []byte, start, n int) uint32 {
	var low, high uint64
	if start+longestWord <= len(text) {
		low, high = binary.LittleEndian.Uint64(text[start:]), binary.LittleEndian.Uint64(text[start+8:])
		if n <= 8 {
			low, high = low&(1<<(8*n)-1), 0
		} else {
			high &= 1<<(8*(n-8)) - 1
		}
	} else {
		var b [longestWord]byte
		copy(b[:], text[start:start+n])
		low, high = binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:])
	}
	return mixWord(low, high, uint(n))
}

const (
	fold = 0x2020202020202020
	ones = 0x0101010101010101
	tops = 0x8080808080808080
)

func mixWord(low, high uint64, n uint) uint32 {
	h := (low|fold)*0x9E3779B97F4A7C15 ^ (high|fold)*0xC2B2AE3D27D4EB4F
	return uint32(h>>32) ^ uint32(n)
}

// notLetters returns a word whose lowest set bit is the top bit of the first byte that is
// no letter of ASCII, or 0.
func notLetters(w uint64) uint64 {
	x := w | fold
	return ((x + (0x7F-'z')*ones) | w | ^(x + (0x80-'a')*ones)) & tops
}

// capitals returns a word with bits set in the bytes that are capitals, of letters and zeros.
func capitals(w uint64) uint64 { return w >> 1 &^ w & fold }

// wordTable finds the classes of a word without a branch: each word has its own slot, and
// moves are what the slots of the words of one bucket are moved by so that none is taken.
type wordTable struct {
	slots [1 << tableBits]wordEntry
	moves [1 << bucketBits]uint32
}

var table = *makeTable()

func makeTable() *wordTable {
	words := map[uint32]wordEntry{}
	add := func(list string, class wordClass, stops uint64) {
		for word := range strings.FieldsSeq(list) {
			h := hashWord([]byte(word), 0, len(word))
			words[h] = wordEntry{h, words[h].class | class, words[h].stops | stops}
		}
	}
	for k, list := range stopWords {
		add(list, 0, 1<<(bitsPacked*k))
	}
	for _, v := range vocabulary {
		add(v.words, v.class, 0)
	}
	var buckets [1 << bucketBits][]wordEntry
	for _, h := range slices.Sorted(maps.Keys(words)) {
		buckets[h%(1<<bucketBits)] = append(buckets[h%(1<<bucketBits)], words[h])
	}
	order := make([]int, len(buckets))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return len(buckets[b]) - len(buckets[a]) })
	t := new(wordTable)
	for _, k := range order {
		for t.moves[k] = 0; !t.place(buckets[k]); t.moves[k]++ {
			if t.moves[k] >= 1<<tableBits {
				panic("prompt: two words of the vocabulary have one slot")
			}
		}
	}
	return t
}

// place takes the slots of words, or of none where one is taken.
func (t *wordTable) place(words []wordEntry) bool {
	for i, w := range words {
		at := t.slotOf(w.hash)
		if t.slots[at].hash != 0 {
			for _, placed := range words[:i] {
				t.slots[t.slotOf(placed.hash)] = wordEntry{}
			}
			return false
		}
		t.slots[at] = w
	}
	return true
}

func (t *wordTable) slotOf(h uint32) uint32 {
	return (h>>(32-tableBits) ^ t.moves[h%(1<<bucketBits)]) % (1 << tableBits)
}

// find returns the entry of the word with a hash, or one that does not match it.
func (t *wordTable) find(h uint32) *wordEntry { return &t.slots[t.slotOf(h)] }

// matches returns all bits, or none where the entry is of another word.
func (e *wordEntry) matches(h uint32) uint64 { return uint64(int64(uint64(e.hash^h)-1) >> 63) }
