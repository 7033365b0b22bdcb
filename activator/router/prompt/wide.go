package prompt

import "bytes"

const (
	fewWide = 6 // characters of a request in Chinese or Japanese at least

	wideReach = 48 // bytes between a verb and what it asks for, sixteen characters
)

// Words of requests in Chinese and Japanese, which have no spaces between words: verbs that
// ask for parts of a text, and the same with other meanings too; parts of texts; verbs that
// ask for code, and what they ask for. In traditional characters too where they differ.
var (
	wideExtract = byteWords("抽取 提取 抽出 摘录")
	wideFind    = byteWords("识别 識別 列出 找出 标注 標註 挑出 选出 指出 筛选 判断 生成 给出")
	wideEntity  = byteWords("实体 實體 关键词 關鍵詞 关键字 三元组 人名 地名 机构名 组织名 固有名詞 キーワード")
	wideField   = byteWords("信息 資訊 情報 事件 关系 關係 名 词 数据 要素 属性 字段 内容 日期 时间 地点 句")
	wideWrite   = byteWords("编写 編寫 实现 實現 写一 写个 写出 开发 生成 设计一个 修改 优化 書いて 作成")
	wideCode    = byteWords("代码 程式 程序 函数 函式 脚本 算法 类 コード プログラム 関数")
)

func byteWords(list string) [][]byte { return bytes.Fields([]byte(list)) }

// wideFirst has the places of the first characters of the verbs.
var wideFirst = func() (t [1 << 11]bool) {
	for _, verbs := range [...][][]byte{wideExtract, wideFind, wideWrite} {
		for _, verb := range verbs {
			t[placeOf(verb)] = true
		}
	}
	return t
}()

// placeOf returns the place of the character of three bytes that text begins with.
func placeOf(text []byte) int {
	return int(text[0]&1)<<10 | int(text[1]&0x3F)<<4 ^ int(text[2]&0x3F)
}

// readWide looks for a request in Chinese or Japanese at the beginning and the end of a
// text: for parts of the text, or for code.
func (s *scan) readWide(text []byte) {
	begin, end := text[:min(len(text), partsBegin)], text[max(0, len(text)-partsEnd):]
	for _, part := range [...][]byte{begin, end} {
		for i := 0; i+2 < len(part); {
			if part[i] < firstWide {
				i++
				continue
			}
			if wideFirst[placeOf(part[i:])] {
				s.noteWide(part, i)
			}
			i += 3
		}
	}
}

// noteWide notes what is asked for beside the verb at i.
func (s *scan) noteWide(text []byte, i int) {
	around := text[max(0, i-wideReach):min(len(text), i+wideReach)]
	text = text[i:]
	entity := hasWord(around, wideEntity, bytes.Contains)
	extract := hasWord(text, wideExtract, bytes.HasPrefix)
	if extract && (entity || hasWord(around, wideField, bytes.Contains)) || entity && hasWord(text, wideFind, bytes.HasPrefix) {
		s.found |= foundParts
	}
	if hasWord(text, wideWrite, bytes.HasPrefix) && hasWord(around, wideCode, bytes.Contains) {
		s.code.asked = codePoints
	}
}

func hasWord(text []byte, words [][]byte, has func(text, word []byte) bool) bool {
	for _, word := range words {
		if has(text, word) {
			return true
		}
	}
	return false
}
