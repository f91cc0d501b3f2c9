package main

// Tests of files that the server is started with and that are broken.

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/cmd/internal/clitest"
)

// The heads of the files.
const (
	auditHead      = "apiVersion: audit.k8s.io/v1\nkind: Policy\n"
	encryptionHead = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n"
	issuersHead    = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"
	tracingHead    = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n"
	kubeconfigHead = "apiVersion: v1\nkind: Config\n"
)

// A broken file is refused before anything is made, in one line that says the flag, the
// file, the line of the file and the fault.
func TestBrokenFilesAreRefused(t *testing.T) {
	const audit, encryption, issuers, tracing, webhook = "audit-policy-file", "encryption-provider-config", "authentication-config", "tracing-config-file", "authorization-webhook-config-file"
	for name, tt := range map[string]struct {
		flag, text string
		line       string
		want       string
	}{
		"audit, value":        {audit, auditHead + "rules:\n- level: None\n- users: [bob]\n  level: All\n", "line 6: ", "rules[1].level"},
		"audit, type":         {audit, auditHead + "rules:\n- level: None\n  users: bob\n", "line 5: ", "cannot unmarshal string"},
		"audit, kind":         {audit, "apiVersion: v1\nkind: Pod\n", "line 2: ", `no kind "Pod"`},
		"audit, no rules":     {audit, auditHead + "rules: []\n", "line 3: ", "0 rules"},
		"audit, YAML":         {audit, auditHead + "rules:\n- level: None\n\tusers: [bob]\n", "line 5: ", "tab character"},
		"audit, JSON":         {audit, "{\n\"apiVersion\": \"audit.k8s.io/v1\",\n\"rules\": [{\"level\": \"None\"]\n}\n", "line 3: ", "invalid character ']'"},
		"audit, JSON's end":   {audit, "{\n\"apiVersion\": \"audit.k8s.io/v1\",\n\"kind\": \"Policy\"\n\n", "line 3: ", "unexpected end of JSON input"},
		"encryption, key":     {encryption, encryptionHead + "  - aescbc:\n      keys:\n      - name: a\n        secret: YQ==\n", "line 9: ", "secret is not of the expected length"},
		"encryption, field":   {encryption, encryptionHead + "  - identity: {}\n  - aescbc: {keyz: []}\n", "line 7: ", "unknown field"},
		"encryption, twice":   {encryption, encryptionHead + "  - identity: {}\n    identity: {}\n", "line 7: ", "already set"},
		"encryption, JSON":    {encryption, "{\n\"kind\": \"EncryptionConfiguration\"\n", "line 2: ", "unexpected end of JSON input"},
		"issuers, field":      {issuers, issuersHead + "jwt:\n- issuer:\n    url: https://a.example\n    audience: [a]\n", "line 6: ", "strict decoding error"},
		"issuers, value":      {issuers, issuersHead + "jwt:\n- issuer:\n    url: http://a.example\n    audiences: [a]\n  claimMappings: {username: {claim: sub, prefix: a}}\n", "line 5: ", "URL scheme must be https"},
		"issuers, lacking":    {issuers, issuersHead + "jwt:\n- issuer: {audiences: [a]}\n  claimMappings:\n    username: {claim: sub, prefix: a}\n", "line 4: ", "jwt[0].issuer.url"},
		"issuers, twice":      {issuers, issuersHead + "jwt: []\njwt: []\n", "line 4: ", "already set"},
		"issuers, anonymous":  {issuers, issuersHead + "anonymous: {enabled: true}\n", "line 3: ", "take it out"},
		"issuers, missing":    {issuers, "", "", "no such file"},
		"tracing, value":      {tracing, tracingHead + "endpoint: localhost:4317\nsamplingRatePerMillion: -1\n", "line 4: ", "must be positive"},
		"tracing, field":      {tracing, tracingHead + "samplingRate: 1\n", "line 3: ", "unknown field"},
		"tracing, type":       {tracing, tracingHead + "samplingRatePerMillion: many\n", "line 3: ", "cannot unmarshal string"},
		"tracing, twice":      {tracing, tracingHead + "kind: TracingConfiguration\n", "line 3: ", "already set"},
		"tracing, YAML":       {tracing, tracingHead + "endpoint: [\n", "line 3: ", "did not find"},
		"tracing, missing":    {tracing, "", "", "no such file"},
		"webhook, YAML":       {webhook, kubeconfigHead + "clusters:\n- name: a\n  cluster: [\n", "line 5: ", "did not find"},
		"webhook, type":       {webhook, kubeconfigHead + "clusters:\n- name: a\n  cluster: {server: [a]}\n", "line 5: ", "cannot unmarshal array"},
		"webhook, JSON's end": {webhook, "{\n\"kind\": \"Config\"\n", "line 2: ", ""},
		"webhook, no cluster": {webhook, kubeconfigHead, "", "invalid configuration"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "broken.yaml")
			if tt.text != "" {
				if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			args := []string{"--" + tt.flag, file}
			if tt.flag == webhook {
				args = append(args, "--authorization-mode=Node,Webhook")
			}
			_, err := parse(t, args...)
			clitest.Refused(t, err, "--"+tt.flag)
			for _, want := range []string{file, tt.line, tt.want} {
				if err != nil && strings.Count(err.Error(), want) == 0 {
					t.Errorf("%v: want %q", err, want)
				}
			}
			if err != nil && strings.Count(err.Error(), "line ") > 1 {
				t.Errorf("%v: more than one line is named", err)
			}
		})
	}
}
