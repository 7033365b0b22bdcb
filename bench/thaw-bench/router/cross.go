package router

import (
	"fmt"
	"slices"

	"github.com/thaw-dev/thaw/activator/router/category"
	"github.com/thaw-dev/thaw/bench/report"
)

// crossMost bounds the prompts of a label that are judged of a repository.
const crossMost = 120

// Cross judges the prompts of each repository that is not held out by a model fitted without that
// repository: what a choice of features or examples is worth. It is the model's judgement alone,
// without the signs of code and of JSON that go before it.
func Cross(prompts []Prompt, progress func(string)) ([]Share, error) {
	of := map[string][]Prompt{}
	var order []string
	for _, p := range prompts {
		if p.Source.Held {
			continue
		}
		if of[p.Source.Repository] == nil {
			order = append(order, p.Source.Repository)
		}
		of[p.Source.Repository] = append(of[p.Source.Repository], p)
	}
	var list []Share
	for i, repository := range order {
		progress(fmt.Sprintf("%s: %d of %d repositories", repository, i+1, len(order)))
		m, err := category.Decode(Fit(slices.DeleteFunc(slices.Clone(prompts), func(p Prompt) bool {
			return p.Source.Repository == repository
		})))
		if err != nil {
			return nil, err
		}
		for _, label := range Labels {
			share := Share{From: repository, Label: label, Rules: map[string]int{}}
			all := slices.DeleteFunc(slices.Clone(of[repository]), func(p Prompt) bool { return p.Label != label })
			for k := range min(crossMost, len(all)) {
				share.count(labelOf[m.Judge([]byte(all[k*len(all)/min(crossMost, len(all))].Text)).Category()])
			}
			if share.All > 0 {
				list = append(list, share)
			}
		}
	}
	return list, nil
}

var labelOf = [category.Categories]string{category.Extraction: Extraction, category.Code: Code,
	category.Reasoning: Reasoning, category.General: General}

// CrossTables returns what Cross returned, by repository and by label.
func CrossTables(list []Share) (repositories, labels *report.Table) {
	repositories = &report.Table{Head: []string{"repository", "label", "prompts", "right", "went to"}}
	labels = &report.Table{Head: []string{"label", "repositories", "mean", "lowest", "below 80 %"}}
	for _, label := range Labels {
		var shares []float64
		sum, below := 0.0, 0
		for _, s := range list {
			if s.Label != label {
				continue
			}
			share := float64(s.Right) / float64(s.All)
			shares, sum = append(shares, share), sum+share
			if share < 0.8 {
				below++
			}
			repositories.Add(s.From, label, s.All, percent(share), s.wrong())
		}
		if len(shares) > 0 {
			labels.Add(label, len(shares), percent(sum/float64(len(shares))), percent(slices.Min(shares)), below)
		}
	}
	return repositories, labels
}
