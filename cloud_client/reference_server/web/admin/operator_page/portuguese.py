"""The operator page in Brazilian Portuguese: {English: Portuguese}. States and codes of the API stay."""

from collections.abc import Mapping
from typing import Final

PORTUGUESE: Final[Mapping[str, str]] = {
    # states
    "wiped": "apagado",
    "revoked": "revogado",
    "wipe not yet acknowledged": "apagamento ainda não confirmado",
    "new": "novo",
    "has no gallery yet": "ainda não tem galeria",
    "stopped": "parado",
    "recognizes no one": "não reconhece ninguém",
    "out of touch": "sem contato",
    "in touch": "em contato",
    "catching up": "atualizando",
    "holds none": "não guarda galeria",
    "none yet": "nenhuma ainda",
    "in an earlier epoch": "em um epoch anterior",
    "in step": "em dia",
    "%(lag)s behind": "%(lag)s atrás",
    "passed": "passou",
    "did not pass": "não passou",
    "a verdict before this one is missing": "falta um veredito anterior a este",
    "another signed object contradicts it": "outro objeto assinado o contradiz",
    "decision by a validator key that is not known": "decisão com uma chave de validador desconhecida",
    "passage by a validator key that is not known": "passagem com uma chave de validador desconhecida",
    "verdict, decision and passage do not agree": "veredito, decisão e passagem não concordam",
    "left": "esquerda",
    "right": "direita",
    " and ": " e ",
    "open": "aberta",
    "review": "em revisão",
    "completed": "concluída",
    "failed": "falhou",
    "expired": "expirada",
    "cancelled": "cancelada",
    "complete": "completo",
    "conflict": "conflito",
    "outcome unknown": "resultado desconhecido",
    "awaiting decision": "à espera da decisão",
    "awaiting passage": "à espera da passagem",
    "serving": "em operação",
    "degraded": "degradado",
    "silent": "sem sinal",
    "active": "ativo",
    "running": "em andamento",
    "paused": "pausada",
    "halted": "interrompida",
    "done": "terminada",
    # fleet
    "%(count)s degraded": "%(count)s degradados",
    "%(count)s silent": "%(count)s sem sinal",
    "Of %(all)s that report: %(serving)s serving, %(degraded)s degraded, %(silent)s silent.": (
        "De %(all)s que enviam relatórios: %(serving)s em operação, %(degraded)s degradados, "
        "%(silent)s sem sinal."
    ),
    "No such device": "Dispositivo inexistente",
    "This environment has no device of that name.": "Este ambiente não tem um dispositivo com esse nome.",
    "All devices": "Todos os dispositivos",
    "It has not reported yet.": "Ainda não enviou relatório.",
    "Newest report": "Relatório mais recente",
    "model": "modelo",
    "%(mib)s MiB of storage free": "%(mib)s MiB livres no armazenamento",
    "No health word.": "Nenhum aviso de saúde.",
    "release %(seq)s": "release %(seq)s",
    "Verdicts of 24 hours": "Vereditos de 24 horas",
    "Hour from": "Hora a partir de",
    "Accept": "Aceitos",
    "Reject": "Rejeitados",
    "Abstain": "Sem decisão",
    "Not matched, by cause:": "Não reconhecidos, por causa:",
    "None was uploaded.": "Nenhum foi enviado.",
    "Palm in view to verdict, since registration": "Da palma visível ao veredito, desde o registro",
    "Time": "Tempo",
    "Share": "Proporção",
    "up to %(ms)s ms": "até %(ms)s ms",
    "longer": "mais",
    "Totals since registration": "Totais desde o registro",
    "Counter": "Contador",
    "Value": "Valor",
    "Rollouts": "Distribuições",
    "begun": "iniciada",
    "wave %(number)s of %(all)s": "onda %(number)s de %(all)s",
    "halted by an operator": "interrompida por um operador",
    "%s of %s devices are bad: %s failed, %s silent": (
        "%s de %s dispositivos com problema: %s falharam, %s sem sinal"
    ),
    "%s of %s verdicts accept since the release was taken, %s of %s on other devices in the same hours": (
        "%s de %s vereditos aceitam desde a instalação da release, %s de %s em outros dispositivos nas "
        "mesmas horas"
    ),
    "Wave": "Onda",
    "Running it": "Em uso",
    "Failed": "Falharam",
    "Silent": "Sem sinal",
    "No release has been rolled out: <code>palmctl cloud release rollout</code> begins.": (
        "Nenhuma release foi distribuída: <code>palmctl cloud release rollout</code> começa."
    ),
    # times
    "just now": "agora mesmo",
    "%s ago": "há %s",
    "in %s": "em %s",
    # pages
    "Devices": "Dispositivos",
    "Verdicts": "Vereditos",
    "Enrollment": "Cadastro",
    "Erasures": "Exclusões",
    "Overview": "Visão geral",
    "Sign in": "Entrar",
    "Sign out": "Sair",
    "API key": "Chave de API",
    "API reference": "Referência da API (em inglês)",
    "Sections": "Seções",
    "Pages": "Páginas",
    "Page %(number)s": "Página %(number)s",
    "Newer": "Mais novas",
    "Older": "Mais antigas",
    "As of": "Situação em",
    "Refresh": "Atualizar",
    "Skip to the content": "Ir para o conteúdo",
    "There is nothing on this page.": "Não há nada nesta página.",
    "Signed in with key <code>%(key_id)s</code>, read-only.": (
        "Conectado com a chave <code>%(key_id)s</code>, só leitura."
    ),
    "<code>palmctl cloud key create</code> makes one.": "<code>palmctl cloud key create</code> cria uma.",
    "Sign in with an API key to see its environment: devices, verdicts, enrollment, erasures. The page only "
    "reads.": (
        "Entre com uma chave de API para ver o ambiente dela: dispositivos, vereditos, cadastro, exclusões. "
        "A página só lê."
    ),
    "The form came from another site. Open this page again and sign in here.": (
        "O formulário veio de outro site. Abra esta página de novo e entre por aqui."
    ),
    "This API key is not accepted.": "Esta chave de API não é aceita.",
    "This key does not have the scope <code>%(scope)s</code>, which this list needs. Sign in with a key that "
    "has it.": (
        "Esta chave não tem o escopo <code>%(scope)s</code>, de que esta lista precisa. Entre com uma chave "
        "que o tenha."
    ),
    # devices
    "Device": "Dispositivo",
    "State": "Estado",
    "Gallery": "Galeria",
    "Health": "Saúde",
    "Gate": "Catraca",
    "Software": "Software",
    "Last seen": "Último contato",
    "synced": "sincronizada",
    "nothing reported": "nada informado",
    "of %(all)s": "de %(all)s",
    "devices in touch and in step": "dispositivos em contato e em dia",
    "Devices that need a look": "Dispositivos que pedem atenção",
    "None: every active device is in touch and has the latest gallery.": (
        "Nenhum: todo dispositivo ativo está em contato e tem a galeria mais recente."
    ),
    "No device is registered yet. <code>palmctl cloud token create</code> makes the token that a device "
    "registers with.": (
        "Nenhum dispositivo registrado ainda. <code>palmctl cloud token create</code> cria o token com que "
        "um dispositivo se registra."
    ),
    # verdicts
    "Decided": "Decidido",
    "Verdict": "Veredito",
    "Validator": "Validador",
    "Passage": "Passagem",
    "Reconciliation": "Conciliação",
    "All": "Todos",
    "All, newest first": "Todos, do mais novo ao mais antigo",
    "All verdicts": "Todos os vereditos",
    "Latest verdicts": "Últimos vereditos",
    "Conflicts": "Conflitos",
    "All conflicts": "Todos os conflitos",
    "conflicts in 30 days": "conflitos em 30 dias",
    "No verdict of the last 30 days disagrees with its decision or passage.": (
        "Nenhum veredito dos últimos 30 dias discorda da sua decisão ou passagem."
    ),
    "No verdict has been uploaded yet.": "Nenhum veredito enviado ainda.",
    "No verdict is listed under “%(word)s”.": "Nenhum veredito em “%(word)s”.",
    "%(device)s at gate %(gate)s, verdict %(number)s: %(decision)s": (
        "%(device)s na catraca %(gate)s, veredito %(number)s: %(decision)s"
    ),
    "validator said %(outcome)s": "o validador disse %(outcome)s",
    "gate %(gate)s, no. %(number)s": "catraca %(gate)s, nº %(number)s",
    "no answer yet": "sem resposta ainda",
    "none": "nenhuma",
    # enrollment
    "Session": "Sessão",
    "Status": "Situação",
    "Person": "Pessoa",
    "Hands": "Mãos",
    "Opened": "Aberta",
    "Ends": "Termina",
    "any": "qualquer",
    "over": "encerrada",
    "or": "ou",
    "the palm may belong to another person:": "a palma pode ser de outra pessoa:",
    "in review, %(open)s open": "em revisão, %(open)s em aberto",
    "No enrollment session has been opened here.": "Nenhuma sessão de cadastro foi aberta aqui.",
    "No enrollment session has been opened further back.": "Não há sessões de cadastro mais antigas.",
    # erasures
    "The cloud forgets a person at once. Each device forgets with its next sync; without a sync it stops "
    "recognizing people after six hours.": (
        "A nuvem esquece uma pessoa na hora. Cada dispositivo esquece na próxima sincronização; sem "
        "sincronizar, deixa de reconhecer pessoas depois de seis horas."
    ),
    "Receipt": "Recibo",
    "Erased": "Excluída",
    "Still waiting for": "À espera de",
    "gallery seq %(seq)s": "seq %(seq)s da galeria",
    "Devices that have applied it": "Dispositivos que já aplicaram",
    "%(done)s of %(all)s": "%(done)s de %(all)s",
    "no device then": "nenhum dispositivo na época",
    "and %(count)s more": "e mais %(count)s",
    "without a sync they stop recognizing %(when)s": "sem sincronizar deixam de reconhecer %(when)s",
    "stopped recognizing %(when)s": "deixaram de reconhecer %(when)s",
    "erasures still on their way": "exclusões a caminho",
    "No one has been erased.": "Ninguém foi excluído.",
    "No one has been erased further back.": "Não há exclusões mais antigas.",
}
