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

// readWide looks for a request in Chinese or Japanese at the beginning and the end of a
// text: for parts of the text, or for code.
func (s *scan) readWide(text []byte) {
	begin, end := text[:min(len(text), partsBegin)], text[max(0, len(text)-partsEnd):]
	for _, part := range [...][]byte{begin, end} {
		if standsBeside(part, wideExtract, wideField) || standsBeside(part, wideExtract, wideEntity) || standsBeside(part, wideFind, wideEntity) {
			s.found |= foundParts
		}
		if standsBeside(part, wideWrite, wideCode) {
			s.code.asked = codePoints
		}
	}
}

// standsBeside reports whether one of the words stands behind one of the verbs, within a reach, or
// before it.
func standsBeside(text []byte, verbs, words [][]byte) bool {
	for _, verb := range verbs {
		for at := 0; ; {
			i := bytes.Index(text[at:], verb)
			if i < 0 {
				break
			}
			at += i
			around := text[max(0, at-wideReach):min(len(text), at+len(verb)+wideReach)]
			for _, word := range words {
				if bytes.Contains(around, word) {
					return true
				}
			}
			at += len(verb)
		}
	}
	return false
}
