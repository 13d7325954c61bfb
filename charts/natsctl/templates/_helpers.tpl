{{- define "natsctl.selector" -}}
app.kubernetes.io/name: natsctl
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
