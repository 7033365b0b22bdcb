package prompt

import (
	"encoding/binary"
	"math/bits"
	"strings"
)

// wordClass is a set of classes of a word. The lowest bits are the languages whose stop
// word it is.
type wordClass uint32

const (
	stopMask wordClass = 1<<languages - 1

	classJSON      wordClass = 1 << (iota + languages - 1)
	classAnswer              // a verb that asks for an answer: return, reply, extract
	classInto                // what stands before JSON where it is the form of the answer
	classShape               // what stands behind it there
	classJudge               // asks for a verdict: classify, is, check
	classHarm                // what is forbidden: toxic, hateful
	classPost                // what is judged: comment, message
	classModerate            // moderation
	classSafe                //
	classUnsafe              //
	classStatement           // begins a line of code
	classLanguage            // a programming language or tool
	classProgram             // what programmers write: function, query
	classMaybe               // a word of programming that has another meaning too
	classMake                // asks for code where it stands beside classProgram: implement, debug
	classBuild               // asks for code where it stands beside classLanguage: create, design
	classSyntax              // a word of code alone: elif, nullptr
	classExtract             // asks for parts of a text
	classField               // a part of a text: name, date
)

const (
	longestWord = 16
	tableBits   = 11
)

var vocabulary = []struct {
	class wordClass
	words string
}{
	{classJSON, "json jsonl csv yaml xml"},
	{classAnswer, "return returns returning reply respond answer output outputs produce give provide format formatted extract generate list present deliver send response result results structured use antworte gib liefere extrahiere ausgabe réponds répondez renvoie extrais retourne responde devuelve extrae rispondi estrai restituisci responda extraia retorne"},
	{classInto, "as in into valid only strict strictly raw pure single compact minified well-formed format formato als im au en como"},
	{classShape, "object objects array dictionary dict string strings format schema only output document response structure list with containing having"},
	{classJudge, "classify check judge assess decide determine flag label rate evaluate is are does detect identify moderate violate violates contains contain whether categorize categorise verdict"},
	{classHarm, "toxic toxicity harmful hateful hate offensive abusive nsfw harassment obscene racist sexist policy guidelines inappropriate profanity threatening disallowed violates"},
	{classPost, "content message messages comment comments text post posts conversation prompt response responses review tweet tweets user input sentence utterance speech statement request"},
	{classModerate, "moderation moderate moderator"},
	{classSafe, "safe"},
	{classUnsafe, "unsafe"},
	{classStatement, "def class import from return function func public private protected static const let var fn struct enum package interface select insert update delete create if for while elif else try except catch use using namespace template async await void int assert print echo switch module type impl export at diff error panic"},
	{classLanguage, "python javascript typescript golang perl php kotlin scala haskell sql mysql postgresql sqlite mongodb bash html css django numpy pytorch tensorflow dockerfile kubernetes kubectl terraform github regex regexp nodejs npm jquery webpack gcc makefile cmake cuda opengl vba matlab xpath graphql redis nginx linux pytest junit laravel leetcode powershell csharp clang llvm sqlalchemy numba codebase"},
	{classProgram, "function functions code program programs algorithm algorithms api snippet subroutine compiler recursion"},
	{classMaybe, "java ruby rust swift react angular spring rails flask pandas docker git node vue unix latex yaml matplotlib script scripts methods endpoint component loop loops recursive variable variables array arrays string strings integer integers pointer database schema unit tests test library framework exception bug stack heap queue linked binary hashmap dictionary tuple boolean parameter parameters argument arguments command regular expression parser webpage app backend frontend server thread threads crash crashes error errors compile compiles output input subarray matrix class classes method query queries constructor graph node nodes vertex"},
	{classMake, "write implement debug refactor optimize optimise fix rewrite code program coding programming"},
	{classBuild, "create generate build develop design complete convert translate define explain install use using make run want need"},
	{classExtract, "extract extracting"},
	{classField, "information name names date dates entity entities keyword keywords field fields attributes values data text passage paragraph article document following email emails address addresses phone numbers facts quotes events locations organizations people person"},
	{classSyntax, "elif nullptr println printf sizeof stdin stdout stderr lambda kwargs args isinstance malloc std argv typedef endif ifdef xrange goroutine mutex segfault segmentation traceback nullpointerexception typeerror valueerror keyerror syntaxerror indexerror attributeerror refactoring debugger dataframe subarray substring subsequence nums palindromic dijkstra"},
}

type wordEntry struct {
	hash  uint32
	class wordClass
}

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
	return mixWord(low, high, n)
}

const (
	fold = 0x2020202020202020
	ones = 0x0101010101010101
	tops = 0x8080808080808080
)

func mixWord(low, high uint64, n int) uint32 {
	h := (low|fold)*0x9E3779B97F4A7C15 ^ (high|fold)*0xC2B2AE3D27D4EB4F
	return uint32(h>>32) ^ uint32(n)
}

// letters reads the word of letters of ASCII alone that text begins with, eight bytes at a
// time: its length, its [hashWord], and whether it has a capital behind its first letter.
// The length is 0 where the word has other characters or more than 15, or where text is
// nearly over.
func letters(text []byte) (n int, hash uint32, inside kind) {
	if len(text) < longestWord {
		return 0, 0, 0
	}
	low, high := binary.LittleEndian.Uint64(text), uint64(0)
	if m := notLetters(low); m != 0 {
		n = bits.TrailingZeros64(m) / 8
		low &= 1<<(8*n) - 1
	} else {
		high = binary.LittleEndian.Uint64(text[8:])
		if m = notLetters(high); m == 0 {
			return 0, 0, 0
		}
		n = bits.TrailingZeros64(m) / 8
		high &= 1<<(8*n) - 1
		n += 8
	}
	if kinds[text[n]] != kindNone {
		return 0, 0, 0
	}
	// A capital has bit 0x20 clear and 0x40 set; behind the word all bits are clear.
	if (^low&(low>>1)&^0xFF|^high&(high>>1))&fold != 0 {
		inside = kindUpper
	}
	return n, mixWord(low, high, n), inside
}

// notLetters returns a word whose top bits are set in the bytes that are no letters of
// ASCII.
func notLetters(w uint64) uint64 {
	x := w&^tops | fold
	letter := (x + (0x80-'a')*ones) &^ (x + (0x7F-'z')*ones) &^ w & tops
	return letter ^ tops
}

var table = func() (t [1 << tableBits]wordEntry) {
	add := func(class wordClass, words string) {
		for word := range strings.FieldsSeq(words) {
			h := hashWord([]byte(word), 0, len(word))
			at := slotOf(h)
			for t[at].class != 0 && t[at].hash != h {
				at = (at + 1) % uint32(len(t))
			}
			t[at].hash = h
			t[at].class |= class
		}
	}
	for k, words := range stopWords {
		add(1<<k, words)
	}
	for _, v := range vocabulary {
		add(v.class, v.words)
	}
	return t
}()

func slotOf(h uint32) uint32 { return (h ^ h>>15) * 0x9E3779B1 >> (32 - tableBits) }

// lookup returns the classes of the word with a hash, 0 if it has none.
func lookup(h uint32) wordClass {
	for at := slotOf(h); ; at = (at + 1) % (1 << tableBits) {
		if e := &table[at]; e.hash == h || e.class == 0 {
			return e.class
		}
	}
}
