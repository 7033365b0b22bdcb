package prompt

// Languages that are told by their stop words, in the order of their bits in a wordClass.
const (
	english = iota
	german
	french
	spanish
	italian
	portuguese
	dutch
	polish
	swedish
	turkish
	languages
)

var languageCodes = [languages]string{"en", "de", "fr", "es", "it", "pt", "nl", "pl", "sv", "tr"}

var stopWords = [languages]string{
	english:    "the of and to is in that it for you what how are with this can my do which write please your an be from have i not who why when was",
	german:     "der die das und ist nicht ich ein eine wie was mit für auf den dem zu sie wir bitte kann im von auch mir werden einen wo warum",
	french:     "le la les et est de des un une que qui dans pour pas je vous ce comment quel quelle du au avec sur mon ma écris pourquoi en où",
	spanish:    "el la los las y es de que en un una por para con no cómo qué mi del se al escribe cuál está como puedo yo donde tengo",
	italian:    "il lo la gli le e è di che un una per con non come mi del della sono in cosa scrivi dove posso quale perché questo nel",
	portuguese: "o a os as e é de que em um uma por para com não como meu do da no na qual escreva você eu onde posso são isso",
	dutch:      "de het een en is van niet ik dat op te voor met hoe wat zijn mijn je kan naar schrijf waarom waar deze ook wordt",
	polish:     "i w na nie się jest to z do jak co że mój czy dla po od jaki gdzie napisz dlaczego jestem są mam",
	swedish:    "och att det är en som på för med inte jag hur vad den av till ett har kan min du skriv varför var mig om",
	turkish:    "ve bir bu için ile ne nasıl mi mı da de çok ben benim var değil olan bana nedir yaz neden gibi kadar",
}

// Scripts beyond ASCII.
const (
	latin = iota
	greek
	cyrillic
	ukrainian // letters of Cyrillic that Russian lacks
	hebrew
	arabic
	persian // letters of Arabic script that Arabic lacks
	devanagari
	thai
	kana
	han
	hangul
	scripts
)

var scriptCodes = [scripts]string{greek: "el", cyrillic: "ru", hebrew: "he", arabic: "ar", devanagari: "hi", thai: "th", kana: "ja", han: "zh", hangul: "ko"}

// noteScript counts the character whose first byte is at i.
func (s *scan) noteScript(text []byte, i int) {
	c, next := text[i], byte(0)
	if i+1 < len(text) {
		next = text[i+1]
	}
	switch {
	case c < 0xC3 || c >= 0xF0:
	case c < 0xCD:
		s.script[latin]++
	case c == 0xCE || c == 0xCF:
		s.script[greek]++
	case c >= 0xD0 && c <= 0xD3:
		s.script[cyrillic]++
		if c == 0xD1 && (next == 0x96 || next == 0x97 || next == 0x94) || c == 0xD2 && next == 0x91 {
			s.script[ukrainian]++
		}
	case c == 0xD7:
		s.script[hebrew]++
	case c >= 0xD8 && c <= 0xDB:
		s.script[arabic]++
		if c == 0xDA && (next == 0x86 || next == 0xAF || next == 0xA9) || c == 0xD9 && next == 0xBE || c == 0xDB && next == 0x8C {
			s.script[persian]++
		}
	case c == 0xE0 && (next == 0xA4 || next == 0xA5):
		s.script[devanagari]++
	case c == 0xE0 && next >= 0xB8 && next <= 0xBA:
		s.script[thai]++
	case c == 0xE1 && next >= 0xB8: // Latin with marks, as in Vietnamese
		s.script[latin]++
	case c == 0xE3 && next >= 0x81 && next <= 0x83:
		s.script[kana]++
	case c >= 0xE4 && c <= 0xE9:
		s.script[han]++
	case c >= 0xEA && c <= 0xED:
		s.script[hangul]++
	}
}

// language returns the ISO 639-1 code of the text, "" if it is not clear.
func (s *scan) language() string {
	best, other := latin, 0
	for k := greek; k < scripts; k++ {
		if k != ukrainian && k != persian {
			other += s.script[k]
			if s.script[k] > s.script[best] || best == latin {
				best = k
			}
		}
	}
	// A character of Han or Hangul stands for more than a letter, a name in a Latin text
	// for less than its language.
	if other > 1 && other*2 > s.words {
		switch {
		case s.script[kana]*5 > other:
			return "ja"
		case best == cyrillic && s.script[ukrainian]*50 > other:
			return "uk"
		case best == arabic && s.script[persian]*30 > other:
			return "fa"
		}
		return scriptCodes[best]
	}
	return s.latinLanguage()
}

// latinLanguage returns the language with the most stop words: at least one in eight
// words, and more than the next language has.
func (s *scan) latinLanguage() string {
	first, second := 0, -1
	for k := 1; k < languages; k++ {
		switch {
		case s.stops[k] > s.stops[first]:
			first, second = k, first
		case second < 0 || s.stops[k] > s.stops[second]:
			second = k
		}
	}
	if n := s.stops[first]; n == 0 || n == s.stops[second] || n*8 < s.words {
		return ""
	}
	return languageCodes[first]
}
